// Package contract holds what recast relies on in Proxmox VE, as tests. They run
// on the simulator always, each in a datacentre of its own and in virtual time,
// and on a real server on demand (make contract): what passes in the lab is what
// passes there.
//
// On a real server everything that a test makes has a VMID of the range that the
// suite was given and carries a marker. It is removed at the end, also after a
// failure, and so is what an earlier run that was killed has left. A VM in the
// range without the marker stops the suite before it has done anything.
package contract
