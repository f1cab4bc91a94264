// Package contract has tests of what recast relies on in Proxmox VE. They always run on the simulator, each in its own
// datacentre and in virtual time, and on demand on a real server (make contract): what passes on the simulator must
// pass there.
//
// On a real server everything that a test makes has a VMID of the suite's range and carries a marker. It is removed at
// the end, also after a failure, and so are the leftovers of a killed run. If the range contains a VM without the
// marker, the suite stops before it does anything.
package contract
