// Package talosctl tests the lab's machines with Sidero's own talosctl, built from its Go
// module.
package talosctl
