"""Makes the documentation a site: ``python -m docs_site`` writes it to build/site.

docs/ is written to be read in a checkout. :mod:`docs_site.staging` brings it, and what lies beside
it there (changelog, security policy, examples), into one folder of pages; Zensical makes HTML of
these with warnings as errors; :mod:`docs_site.__main__` then looks that no page loads anything from
elsewhere. :mod:`docs_site.diagrams` draws the pictures of docs/ from the product's own tables.
"""
