// Package exchange replaces the system disk of one VM, and with it the VM where that is wanted,
// while its persistent disks wait on a parking VM. It needs Proxmox and nothing else; its most
// important type is [Replace], and what it must remember is in a [parking.Record].
package exchange
