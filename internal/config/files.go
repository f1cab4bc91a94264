package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// files checks that every file the configuration names is there, but for what only
// some commands use.
func (r *report) files(c *Config, stat func(string) (fs.FileInfo, error)) {
	check := func(path, file, what string) {
		if !r.given(path) || file == "" {
			return
		}
		info, err := stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.add(path, "no such %s: %s", what, file)
		case err != nil:
			r.add(path, "%v", err)
		case info.IsDir() != (what == "directory"):
			r.add(path, "%s is not a %s", file, what)
		}
	}
	for name, s := range c.Schematics {
		check(spot{path: "schematics"}.entry(name).path, s.Path, "file")
	}
	check("proxmox.caFile", c.Proxmox.CAFile, "file")
	check("images.signingKey", c.Images.SigningKey, "file")
	for i, g := range c.Roll.Gates {
		if len(g.Command) > 0 && strings.ContainsRune(g.Command[0], filepath.Separator) {
			program := g.Command[0]
			if !filepath.IsAbs(program) {
				program = filepath.Join(c.Dir, program)
			}
			check(fmt.Sprintf("roll.gates[%d].command", i), program, "file")
		}
	}
	ifThere := func(path, file, what string) {
		if _, err := stat(file); !errors.Is(err, fs.ErrNotExist) {
			check(path, file, what)
		}
	}
	// Credentials: who makes images has none of the cluster.
	ifThere("talos.config", c.Talos.Config, "file")
	ifThere("talos.machineConfigs", c.Talos.MachineConfigs, "directory")
	// Created when there is a snapshot to keep.
	ifThere("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
}
