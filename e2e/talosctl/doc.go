// Package talosctl has Sidero's own talosctl, built from its Go module, talk to
// the lab's machines: see the tests.
package talosctl
