"""What tests of refusals share with others."""

DECIDED = {"tile_b": (1,), "tile_h": (3,), "tile_w": (2,), "tile_ci": (1,), "tile_co": (2,),
           "oc_nthread": (2,), "h_nthread": (1,)}  # fmt: skip
