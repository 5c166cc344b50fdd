"""What trained models have learned."""

from reattend.analysis.spectra import Spectrum, kernel_spectra

__all__ = ["Spectrum", "kernel_spectra"]
