"""Runs on disk to the paper's tables and figures, ours beside theirs. Reads runs, never trains."""

from stpn.report.build import Report as Report
from stpn.report.build import Written as Written
from stpn.report.build import build as build
from stpn.report.build import gather as gather
