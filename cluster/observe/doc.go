// Package observe reads what Proxmox, Talos and Kubernetes say about the nodes, and compares that with what is
// wanted. [Observe] makes an [Observation], which has one [Found] for each node. [Diff] says whether a node is
// stale, and why; [Trace], how certain the origin of its image is, link by link: machine, boot entry, installer,
// lock, schematic, factory; [CompareFiles], whether the files of its extensions are those of its image. The package
// changes nothing.
package observe
