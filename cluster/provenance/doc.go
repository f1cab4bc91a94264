// Package provenance traces which image a node runs back to where it came from, link by
// link: machine, boot entry, installer, lock, schematic, factory. [Trace] judges a
// [Trail] of what was read; [Provenance] says for each [Link] how certain it is.
package provenance
