# Builds `network`: needs a C99 compiler and an OpenCL library (of a driver, or a loader).
# A library without a development package is named: make OPENCL=/usr/lib/libOpenCL.so.1

CC     ?= cc
CFLAGS ?= -O2
OPENCL ?= -lOpenCL

network: network.c network.h
	$(CC) -std=c99 $(CFLAGS) -o $@ network.c $(LDFLAGS) $(OPENCL)

# A program of your own that calls the functions of network.h: `make app` builds it from app.c.
%: %.c network.c network.h
	$(CC) -std=c99 $(CFLAGS) -DWITHOUT_MAIN -o $@ $< network.c $(LDFLAGS) $(OPENCL)

clean:
	rm -f network

.PHONY: clean
