"""The process in which pypdf alone reads a PDF on which PDFium crashed; takes what `pdf_worker` takes."""

import sys

from app.documents.pdf_worker import main

if __name__ == "__main__":
    main(sys.argv[1:], with_pdfium=False)
