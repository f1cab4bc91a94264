// Package access knows which privileges of Proxmox each command takes, and compares them with
// those of the token. Its most important type is [Needs].
package access
