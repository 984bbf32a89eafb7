"""What tests of examiner share with others."""

from retune.bundle.verify.compare import Verification
from retune.bundle.verify.examiner import Verdict

FOUND = Verification(
    samples=1, max_abs=0.0, max_rel_range=0.0, outputs=(), tolerance=1e-4, used=0.0
)

VERDICT = Verdict(oracle="numpy", version="2", found=FOUND)
