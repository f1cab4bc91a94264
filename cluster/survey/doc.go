// Package survey looks at a cluster and says what is here, what is missing, and why.
//
// [LookAround] makes a [Survey], for a diagnosis: unlike an observation for a plan it goes on where
// something can't be read. [Discover] finds out of a running cluster what recast.yaml needs to know:
// which VM is which node, where its disks are, what may hold them. [Needs] are the privileges of
// Proxmox that a command takes, compared with those of the token. [Explain] says why a plan treats
// one node as it does: what is wanted beside what was found, what speaks against each strategy, and
// the steps to come.
package survey
