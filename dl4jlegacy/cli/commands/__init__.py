"""The commands of ``dl4j``; each group is a module, which is imported when one of its commands is given."""
