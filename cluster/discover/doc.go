// Package discover finds out of a running cluster what recast.yaml needs to know: which VM
// is which node, where its disks are, what may hold them. [Discovery] is what was found.
package discover
