"""The commands of ``dl4j``, each group a module, imported when one of its commands is given."""
