// Package adopt takes a cluster over from Terraform: it writes recast.yaml from what Terraform knows, says how
// Terraform is kept from undoing a roll, and refuses plans of Terraform that would take nodes away.
package adopt
