//go:build !linux

package main

// hide does nothing on systems where a process's memory can't be read through a file.
func hide() error { return nil }
