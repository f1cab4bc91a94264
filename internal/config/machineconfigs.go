package config

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// MachineConfigs is the section "talos.machineConfigs": the path of a directory, or a mapping with dir, command or render.
type MachineConfigs struct {
	// Dir is a directory with one file per node. A node without a file keeps the configuration that it runs.
	Dir string `yaml:"dir,omitempty"`
	// Command is a program that writes the files of all nodes, and its arguments, in which {out} is the directory for its output. It runs in the directory of this file, at most once per recast command; its output is read, and deleted at once. Use it for talhelper, topf, talm or a script of yours.
	Command []string `yaml:"command,omitempty"`
	// Render makes the configurations of all nodes from secrets and patches, as talosctl gen config does.
	Render RenderConfigs `yaml:"render,omitempty"`
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
func (m MachineConfigs) Given() bool { return m.Dir != "" || len(m.Command) > 0 || m.Render.Given() }

// Given says whether recast renders configurations itself.
func (r RenderConfigs) Given() bool { return r.Secrets != "" }

// RenderConfigs is the section "talos.machineConfigs.render".
type RenderConfigs struct {
	// Secrets is the file with the cluster's secrets, as talosctl gen secrets writes it. SOPS or age may have encrypted it.
	Secrets string `yaml:"secrets"`
	// Endpoint is the URL of the Kubernetes API, as all nodes reach it: https://10.0.0.1:6443.
	Endpoint string `yaml:"endpoint" jsonschema:"format=uri"`
	// Talos is the release of Talos whose defaults and documents the configurations have, such as v1.14, whatever version the nodes run. Move it on purpose only: recast config diff shows what that changes.
	Talos string `yaml:"talos"`
	// Kubernetes is the version in the configurations, such as v1.35.4. Nodes keep the version that they run. Default: kubernetes.version.
	Kubernetes string `yaml:"kubernetes,omitempty"`
	// ControlPlanes are the names of the nodes that are control planes. All others are workers.
	ControlPlanes []string `yaml:"controlPlanes"`
	// CertSANs are further names and addresses in the certificate of the Kubernetes API.
	CertSANs []string `yaml:"certSANs,omitempty"`
	// DNSDomain is the DNS domain of the cluster. Default: cluster.local.
	DNSDomain string `yaml:"dnsDomain,omitempty"`
	// Patches are files with parts of a configuration (strategic merge patches) or lists of JSON patch operations, which are applied in this order: those of all nodes, of the node's role, of the node. SOPS or age may have encrypted them.
	Patches RenderPatches `yaml:"patches,omitempty"`
}

// RenderPatches is the section "talos.machineConfigs.render.patches".
type RenderPatches struct {
	// All are patches of every node.
	All []string `yaml:"all,omitempty"`
	// ControlPlanes are patches of all control planes.
	ControlPlanes []string `yaml:"controlPlanes,omitempty"`
	// Workers are patches of all workers.
	Workers []string `yaml:"workers,omitempty"`
	// Nodes are patches of single nodes, by their names.
	Nodes map[string][]string `yaml:"nodes,omitempty"`
}

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
	case k.given(path + ".render"):
		for _, other := range []string{"dir", "command", "names"} {
			if k.given(path + "." + other) {
				k.add(path+".render", "%s is given too (line %d): keep one of them", other, k.line(path+"."+other))
			}
		}
		k.renderConfigs(path+".render", m.Render)
	case dir && command:
		k.add(path+".command", "dir is given too (line %d): keep one of them", k.line(path+".dir"))
	case dir:
		k.notEmpty(path+".dir", m.Dir)
	case command && len(m.Command) == 0:
		k.add(path+".command", "is empty: name a program or remove it")
	case command && !strings.Contains(strings.Join(m.Command[1:], " "), "{out}"):
		k.add(path+".command", "does not say where its output goes: give it {out} as an argument, which recast replaces by the path of an empty directory")
	case !command && m.Dir == "":
		k.add(path, "is empty: name a directory, or a command, or render, or remove it")
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

func (k checker) renderConfigs(path string, r RenderConfigs) {
	k.notEmpty(path+".secrets", r.Secrets)
	k.notEmpty(path+".endpoint", r.Endpoint)
	if u, err := url.Parse(r.Endpoint); r.Endpoint != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
		k.add(path+".endpoint", "%s is not a URL such as https://10.0.0.1:6443", quote(r.Endpoint))
	}
	if !release.MatchString(r.Talos) {
		k.add(path+".talos", "%s is not a release such as v1.14", quote(r.Talos))
	}
	if r.Kubernetes == "" && k.c.Kubernetes.Version == "" {
		k.add(path+".kubernetes", "is missing, and so is kubernetes.version: which version do the configurations name?")
	}
	known := func(path, name string) {
		if !slices.ContainsFunc(k.c.Nodes, func(n Node) bool { return n.Name == name }) {
			k.add(path, "there is no node %s", quote(name))
		}
	}
	if len(r.ControlPlanes) == 0 {
		k.add(path+".controlPlanes", "is missing: which nodes are control planes?")
	}
	for i, name := range r.ControlPlanes {
		known(spot{path: path + ".controlPlanes"}.item(i).path, name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Patches.Nodes)) {
		known(path+".patches.nodes", name)
	}
}

// release matches a release of Talos, with or without its patch number.
var release = regexp.MustCompile(`^v1\.\d+(\.\d+)?$`)

// files are all files of which configurations are rendered, and where recast.yaml names them.
func (r *RenderConfigs) files(each func(path string, file *string)) {
	if !r.Given() {
		return
	}
	const path = "talos.machineConfigs.render"
	each(path+".secrets", &r.Secrets)
	lists := map[string][]string{"all": r.Patches.All, "controlPlanes": r.Patches.ControlPlanes, "workers": r.Patches.Workers}
	for node, list := range r.Patches.Nodes {
		lists["nodes."+node] = list
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		for i := range lists[name] {
			each(fmt.Sprintf("%s.patches.%s[%d]", path, name, i), &lists[name][i])
		}
	}
}
