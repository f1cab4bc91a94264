// Package observe reads what Proxmox, Talos and Kubernetes say about the nodes, and compares it
// with what is wanted. [Observe] makes an [Observation], which has one [Found] for each node;
// [Diff] says of one whether it is stale, and why. It changes nothing.
package observe
