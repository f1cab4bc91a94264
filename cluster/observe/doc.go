// Package observe reads what Proxmox, Talos and Kubernetes say about the nodes, and compares it
// with what is wanted. [Observe] makes an [Observation], which has one [Found] for each node;
// [Diff] says of one whether it is stale, and why; [Trace] how certain it is where its image comes from, link by
// link: machine, boot entry, installer, lock, schematic, factory; [CompareFiles] whether the files of its extensions
// are those of its image. It changes nothing.
package observe
