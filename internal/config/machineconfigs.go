package config

import (
	"path/filepath"
	"strings"
)

// MachineConfigs is the section "talos.machineConfigs": the path of a directory, or a mapping with dir or command.
type MachineConfigs struct {
	// Dir is a directory with one file per node. A node without a file keeps the configuration that it runs.
	Dir string `yaml:"dir,omitempty"`
	// Command is a program that writes the files of all nodes, and its arguments, in which {out} is the directory for its output. It runs in the directory of this file, at most once per recast command; its output is read, and deleted at once. Use it for talhelper, topf, talm or a script of yours.
	Command []string `yaml:"command,omitempty"`
	// Env names variables of recast's environment to pass to command, sops and age, in addition to those that they get anyway; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
	// Names is the path of a node's file in that directory, in which {node} is the node's name and {cluster} the cluster's, such as {cluster}-{node}.yaml. Default: {node}.yaml.
	Names string `yaml:"names,omitempty"`
	// Path is Dir resolved against the directory of recast.yaml.
	Path string `yaml:"-"`
}

// UnmarshalText accepts the short form, the path of a directory.
func (m *MachineConfigs) UnmarshalText(text []byte) error {
	m.Dir = string(text)
	return nil
}

// Given says whether configurations are kept anywhere but on the nodes.
func (m MachineConfigs) Given() bool { return m.Dir != "" || len(m.Command) > 0 }

// File is the path of a node's file within the directory.
func (m MachineConfigs) File(cluster, node string) string {
	return strings.NewReplacer("{node}", node, "{cluster}", cluster).Replace(m.Names)
}

func (k checker) machineConfigs() {
	const path = "talos.machineConfigs"
	m := k.c.Talos.MachineConfigs
	if !k.given(path) || k.bad[path] {
		return
	}
	dir, command := k.given(path+".dir"), k.given(path+".command")
	switch {
	case dir && command:
		k.add(path+".command", "dir is given too (line %d): keep one of them", k.line(path+".dir"))
	case dir:
		k.notEmpty(path+".dir", m.Dir)
	case command && len(m.Command) == 0:
		k.add(path+".command", "is empty: name a program or remove it")
	case command && !strings.Contains(strings.Join(m.Command[1:], " "), "{out}"):
		k.add(path+".command", "does not say where its output goes: give it {out} as an argument, which recast replaces by the path of an empty directory")
	case !command && m.Dir == "":
		k.add(path, "is empty: name a directory, or a command, or remove it")
	}
	for i, arg := range m.Command {
		if arg == "" {
			k.add(spot{path: path + ".command"}.item(i).path, "is empty: give it a value or remove it")
		}
	}
	k.env(path, m.Env)
	if !k.given(path + ".names") {
		return
	}
	switch {
	case !strings.Contains(m.Names, "{node}"):
		k.add(path+".names", "%s has no {node}: every node would get the same file", quote(m.Names))
	case !filepath.IsLocal(m.File("cluster", "node")):
		k.add(path+".names", "%s leads out of the directory", quote(m.Names))
	case strings.ContainsAny(m.File("cluster", "node"), "{}"):
		k.add(path+".names", "%s has another place than {node} and {cluster}", quote(m.Names))
	}
}
