// Package shape compares a VM with the shape that recast.yaml wants of it, and changes it: what
// Proxmox applies to a VM that runs, and what it takes a VM that is off for.
package shape
