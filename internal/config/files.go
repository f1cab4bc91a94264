package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// files checks that every file that the configuration names exists, except for those
// that only some commands use.
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
	check("images.caFile", c.Images.CAFile, "file")
	check("images.signingKey", c.Images.SigningKey, "file")
	program := func(path string, command []string) {
		if len(command) > 0 && strings.ContainsRune(command[0], filepath.Separator) {
			file := command[0]
			if !filepath.IsAbs(file) {
				file = filepath.Join(c.Dir, file)
			}
			check(path+".command", file, "file")
		}
	}
	for i, g := range c.Roll.Gates {
		program(fmt.Sprintf("roll.gates[%d]", i), g.Command)
	}
	program("talos.machineConfigs", c.Talos.MachineConfigs.Command)
	for _, list := range c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			program(fmt.Sprintf("%s[%d]", list.path, i), h.Command)
		}
	}
	for i, w := range c.Notify {
		check(fmt.Sprintf("notify[%d].caFile", i), w.CAFile, "file")
	}
	ifThere := func(path, file, what string) {
		if _, err := stat(file); !errors.Is(err, fs.ErrNotExist) {
			check(path, file, what)
		}
	}
	// Credentials are optional: building images needs none of the cluster.
	ifThere("talos.config", c.Talos.Config, "file")
	ifThere("talos.machineConfigs", c.Talos.MachineConfigs.Path, "directory")
	c.Talos.MachineConfigs.Render.files(func(path string, file *string) { check(path, *file, "file") })
	// Created when the first snapshot is saved.
	ifThere("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
}
