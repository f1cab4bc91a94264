package talosctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rendering is what configurations are rendered of: patches, by the list that they are in.
type rendering struct {
	talos                                 string // version contract
	all, controlPlanes, workers, cp1, wk1 []string
}

const (
	labels   = "machine:\n  nodeLabels: {zone: a, rack: r1}\n"
	sysctls  = "machine:\n  sysctls: {vm.swappiness: \"10\", net.core.somaxconn: \"65535\"}\n"
	pods     = "cluster:\n  network: {podSubnets: [10.42.0.0/16], serviceSubnets: [10.43.0.0/16], cni: {name: none}}\n"
	apiExtra = "cluster:\n  apiServer: {extraArgs: {feature-gates: UserNamespacesSupport=true}, certSANs: [api.example.org]}\n"
	volume   = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 10GiB}\n"
	resolver = "apiVersion: v1alpha1\nkind: ResolverConfig\nnameservers: [{address: 10.0.0.53}]\n"
	address  = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses: [{address: 10.0.0.11/24}]\nroutes: [{gateway: 10.0.0.1}]\n"
	several  = labels + "---\n" + resolver
	jsonList = `[{"op": "add", "path": "/machine/kubelet/extraArgs", "value": {"rotate-server-certificates": "true"}}]`
	yamlList = "- op: replace\n  path: /cluster/clusterName\n  value: other\n"
	drops    = "machine:\n  features:\n    hostDNS:\n      $patch: delete\n"
)

var renderings = map[string]rendering{
	"none":                 {talos: "v1.14"},
	"an older release":     {talos: "v1.12", all: []string{labels}},
	"all nodes":            {talos: "v1.14", all: []string{labels, sysctls}},
	"roles":                {talos: "v1.13", all: []string{pods}, controlPlanes: []string{apiExtra}, workers: []string{sysctls}},
	"single nodes":         {talos: "v1.13", all: []string{labels}, cp1: []string{address}, wk1: []string{volume, sysctls}},
	"documents":            {talos: "v1.14", all: []string{resolver}, workers: []string{volume}},
	"several in a file":    {talos: "v1.14", all: []string{several}, wk1: []string{volume}},
	"JSON patches":         {talos: "v1.10", all: []string{jsonList}},
	"JSON patches in YAML": {talos: "v1.10", controlPlanes: []string{yamlList}, all: []string{labels, jsonList}},
	"a part goes":          {talos: "v1.13", all: []string{sysctls}, workers: []string{drops}},
}

// TestRendered: what recast renders is what talosctl gen config makes of the same secrets, patches
// and versions.
func TestRendered(t *testing.T) {
	t.Parallel()
	for name, r := range renderings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUser(t)
			mustDo(t, os.Mkdir(u.dir, 0o700))
			u.does("talosctl", "gen", "secrets", "-o", "secrets.yaml", "--talos-version", r.talos)
			u.writes("schematic.yaml", "customization: {}\n")
			u.writes("recast.yaml", r.project(u))
			u.does("recast", "config", "render", "--to", "out", "--secrets")
			for node, kind := range map[string]string{"cp1": "controlplane", "wk1": "worker"} {
				u.does("talosctl", r.gen(u, node, kind)...)
				want, errWant := os.ReadFile(filepath.Join(u.dir, node+".gen"))
				got, err := os.ReadFile(filepath.Join(u.dir, "out", node+".yaml"))
				if err != nil || errWant != nil || string(got) != string(want) {
					t.Errorf("%s: %v, %v, got:\n%s\nwant:\n%s", node, err, errWant, got, want)
				}
			}
		})
	}
}

// does runs a program, which must succeed.
func (u *user) does(name string, args ...string) {
	u.t.Helper()
	if stdout, stderr, code := u.run(name, args...); code != 0 {
		u.t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), code, stdout, stderr)
	}
}

func (u *user) writes(name, text string) {
	u.t.Helper()
	mustDo(u.t, os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600))
}

// files writes patches, and returns their paths.
func (u *user) files(list string, patches []string) []string {
	var names []string
	for i, p := range patches {
		name := fmt.Sprintf("%s-%d.yaml", list, i)
		u.writes(name, p)
		names = append(names, name)
	}
	return names
}

func (r rendering) project(u *user) string {
	list := func(name string, patches []string) string {
		return "[" + strings.Join(u.files(name, patches), ", ") + "]"
	}
	return fmt.Sprintf(`version: 1
cluster: home
talos:
  version: v1.14.1
  machineConfigs:
    render:
      secrets: secrets.yaml
      endpoint: https://10.0.0.10:6443
      talos: %s
      kubernetes: v1.35.4
      controlPlanes: [cp1]
      patches: {all: %s, controlPlanes: %s, workers: %s, nodes: {cp1: %s, wk1: %s}}
images: {iso: {storage: [isos]}}
schematics: {default: schematic.yaml}
proxmox: {endpoints: ["https://127.0.0.1:8006"], vmids: 9000-9099}
nodes:
  - {name: cp1, schematic: default}
  - {name: wk1, schematic: default}
`, r.talos, list("all", r.all), list("cp", r.controlPlanes), list("worker", r.workers), list("cp1", r.cp1), list("wk1", r.wk1))
}

// gen are the arguments that have talosctl make a node's configuration.
func (r rendering) gen(u *user, node, kind string) []string {
	args := []string{
		"gen", "config", "home", "https://10.0.0.10:6443", "--with-secrets", "secrets.yaml", "--talos-version", r.talos, "--kubernetes-version", "1.35.4",
		"--with-docs=false", "--with-examples=false", "--install-image", "ghcr.io/siderolabs/installer:v1.14.1", "-t", kind, "-o", node + ".gen",
	}
	role, own, flag := r.workers, r.wk1, "--config-patch-worker"
	if kind == "controlplane" {
		role, own, flag = r.controlPlanes, r.cp1, "--config-patch-control-plane"
	}
	for _, name := range u.files(node+"-gen-all", r.all) {
		args = append(args, "--config-patch", "@"+name)
	}
	for _, name := range append(u.files(node+"-gen-role", role), u.files(node+"-gen-own", own)...) {
		args = append(args, flag, "@"+name)
	}
	return args
}
