package schematics

import (
	"embed"
	"io/fs"
)

//go:embed examples/*.yaml
var examples embed.FS

// Examples holds schematics to start from: "qemu-guest-agent.yaml" and others.
func Examples() fs.FS {
	sub, err := fs.Sub(examples, "examples")
	if err != nil {
		panic(err) // the name is a constant
	}
	return sub
}
