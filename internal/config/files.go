package config

import (
	"errors"
	"io/fs"
)

// files checks that every file the configuration names is there.
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
	check("talos.config", c.Talos.Config, "file")
	check("talos.machineConfigs", c.Talos.MachineConfigs, "directory")
	check("proxmox.caFile", c.Proxmox.CAFile, "file")
	check("images.signingKey", c.Images.SigningKey, "file")
	// Created when there is a snapshot to keep.
	if _, err := stat(c.Roll.EtcdSnapshot); !errors.Is(err, fs.ErrNotExist) {
		check("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
	}
}
