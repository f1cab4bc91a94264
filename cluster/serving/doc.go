// Package serving changes the VM of a node that serves, as a roll's steps: what Proxmox applies to a VM
// that runs, and the host that it runs on.
package serving
