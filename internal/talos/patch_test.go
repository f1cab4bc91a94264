package talos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

var wanted = cluster.ConfigPatch{Installer: installer, Disk: cluster.MachineDisk{Device: "sda", WWID: "naa.30a1b2c3d4e5f607", BusPath: "/pci0000:00/2:0:0:0"}, Hostname: "wk1"}

// generated is the output of talosctl gen config for that version of Talos.
func generated(t *testing.T, version string, kind machine.Type, comments bool) []byte {
	t.Helper()
	contract := must.Get(config.ParseContractFromVersion(version))(t)
	bundle := must.Get(secrets.NewBundle(secrets.NewClock(), contract, secrets.WithECDSAServiceAccountKey()))(t)
	in := must.Get(generate.NewInput("lab", "https://127.42.7.10:6443", "1.35.4", generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle),
		generate.WithInstallDisk("/dev/vda"), generate.WithInstallImage("ghcr.io/siderolabs/installer:"+version), generate.WithClusterDiscovery(true)))(t)
	cfg := must.Get(in.Config(kind))(t)
	flags := encoder.CommentsDisabled
	if comments {
		flags = encoder.CommentsAll
	}
	return must.Get(cfg.EncodeBytes(encoder.WithComments(flags)))(t)
}

func patch(t *testing.T, config []byte) []byte {
	t.Helper()
	return must.Get(new(Client).PatchConfig(config, wanted))(t)
}

// After the patch, the output of talosctl for each version says what is wanted and
// is otherwise unchanged, and a second patch changes no byte.
func TestPatchGenerated(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		for _, kind := range []machine.Type{machine.TypeWorker, machine.TypeControlPlane} {
			for _, comments := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s comments=%t", version, kind, comments), func(t *testing.T) {
					t.Parallel()
					config := generated(t, version, kind, comments)
					patched := patch(t, config)
					cfg := must.Get(configloader.NewFromBytes(patched))(t)
					if u := cfg.UnattendedInstallConfig(); u != nil {
						got := fmt.Sprintf("%s %s %t", u.InstallerImage(), u.VolumeSelector(), u.VolumeWipe())
						must.Equal(t, "unattended install", installer+` disk.wwid == "naa.30a1b2c3d4e5f607" false`, got)
					} else if in := cfg.Machine().Install(); in.Image() != installer || in.Disk() != "" || in.Zero() {
						t.Errorf("install = %+v", in)
					}
					must.Equal(t, "hostname", "wk1", cfg.NetworkHostnameConfig().Hostname())
					changed := changedLines(config, patched)
					must.Hold(t, changed <= 9, "%d lines differ", changed)
					must.Equal(t, "second patch", string(patched), string(patch(t, patched)))
				})
			}
		}
	}
}

// changedLines counts the lines that only one of the two has, without comments.
func changedLines(a, b []byte) int {
	count := map[string]int{}
	for by, text := range map[int][]byte{1: a, -1: b} {
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				count[line] += by
			}
		}
	}
	n := 0
	for _, c := range count {
		n += max(c, -c)
	}
	return n
}

const handWritten = `# written by hand
machine:
  type: worker # a worker
  token: abcdef.0123456789abcdef
  ca: {crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUIKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=, key: ""}
  kubelet:
    extraArgs: {v: "4"}
  files:
  - path: /etc/x
    permissions: 0o644
    op: create
    content: |
      --- not a document
      key: "value" # not a comment
%s
cluster:
  id: Zm9v
  secret: YmFy
  controlPlane:
    endpoint: https://127.42.7.10:6443
  token: abcdef.0123456789abcdef
  ca: {crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUIKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=, key: ""}
`

func TestPatchByHand(t *testing.T) {
	t.Parallel()
	const tail = "---\n# kept,   byte by byte\napiVersion:   v1alpha1\nkind: VolumeConfig\nname: 'EPHEMERAL'\nprovisioning:\n      diskSelector: {match: 'disk.serial == \"data-wk1\"'}\n"
	cases := map[string]struct{ machine, docs, wantMachine, wantDocs string }{
		"nothing yet": {
			"", "",
			"\n  network:\n    hostname: wk1\n  install:\n    image: IMAGE\n    diskSelector:\n      wwid: WWID\n    wipe: false", "",
		},
		"another disk, other selectors": {
			"  install:\n    # the disk\n    disk: /dev/sda\n    diskSelector:\n      size: '>= 100GB'\n      model: QEMU*\n    image: old # pinned\n    wipe: true\n    extraKernelArgs:\n    - a=b\n  network:\n    hostname: \"old\"", "",
			"  install:\n    diskSelector:\n      wwid: WWID\n    image: IMAGE # pinned\n    wipe: false\n    extraKernelArgs:\n    - a=b\n  network:\n    hostname: wk1", "",
		},
		"documents of their own": {
			"  features:\n    rbac: true",
			"---\nkind: HostnameConfig\napiVersion: v1alpha1\nauto: stable # for now\n---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller:\n    image: old\nprovisioning:\n    diskSelector:\n        match: |\n            disk.transport == \"nvme\"\n",
			"  features:\n    rbac: true",
			"---\nkind: HostnameConfig\napiVersion: v1alpha1\nhostname: wk1\n---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller:\n    image: IMAGE\nprovisioning:\n    diskSelector:\n        match: disk.wwid == \"WWID\"\n    wipe: false\n",
		},
	}
	fill := strings.NewReplacer("IMAGE", installer, "WWID", wanted.Disk.WWID)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := string(patch(t, []byte(fmt.Sprintf(handWritten, c.machine)+c.docs+tail)))
			must.Hold(t, strings.HasSuffix(got, tail), "the untouched document changed")
			want := any(nil)
			decode(t, fill.Replace(fmt.Sprintf(handWritten, c.wantMachine)), &want)
			head, docs, _ := strings.Cut(strings.TrimSuffix(got, tail), "\n---\n")
			var main any
			decode(t, head, &main)
			must.Equal(t, "main document", want, main)
			must.Equal(t, "documents", strings.TrimPrefix(fill.Replace(c.wantDocs), "---\n"), docs)
			must.Contain(t, "patched", got, "# written by hand", "type: worker # a worker")
		})
	}
}

// What the patch does not name stays as it was, to the line.
func TestPatchLeavesTheRest(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		patch cluster.ConfigPatch
		lines map[string]int // of each version's worker: number of different lines, counting both
	}{
		"installer":   {cluster.ConfigPatch{Installer: installer}, map[string]int{"v1.12": 2, "v1.14": 2}},
		"disk":        {cluster.ConfigPatch{Disk: cluster.MachineDisk{Serial: "recast-1"}}, map[string]int{"v1.12": 3, "v1.14": 2}},
		"hostname":    {cluster.ConfigPatch{Hostname: "wk1"}, map[string]int{"v1.12": 2, "v1.14": 2}},
		"all of them": {wanted, map[string]int{"v1.12": 7, "v1.14": 6}},
	}
	for name, c := range cases {
		for version, want := range c.lines {
			config := generated(t, version, machine.TypeWorker, false)
			patched := must.Get(new(Client).PatchConfig(config, c.patch))(t)
			must.Equal(t, name+", "+version+": lines that differ", want, changedLines(config, patched))
		}
	}
}

// TestPatchKeepsEmptyDocuments: a file may begin with a comment and a line of ---,
// or end with such a line. Talos skips an empty document.
func TestPatchKeepsEmptyDocuments(t *testing.T) {
	t.Parallel()
	config := generated(t, "v1.14", machine.TypeWorker, false)
	want := string(patch(t, config))
	for name, around := range map[string][2]string{
		"a comment above": {"# kept in git\n---\n", ""},
		"a marker above":  {"---\n---\n", ""},
		"a marker below":  {"", "---\n"},
		"a comment below": {"", "---\n# the end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			must.Equal(t, "patched", around[0]+want+around[1], string(patch(t, []byte(around[0]+string(config)+around[1]))))
		})
	}
}

// A node created from a disk image has no installation in its configuration.
func TestPatchInstallerWhereNoneWas(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(handWritten, "  features:\n    rbac: true")
	patched := must.Get(new(Client).PatchConfig([]byte(config), cluster.ConfigPatch{Installer: installer}))(t)
	var want, got any
	decode(t, fmt.Sprintf(handWritten, "  features:\n    rbac: true\n  install:\n    image: "+installer), &want)
	decode(t, string(patched), &got)
	must.Equal(t, "patched", want, got)
}

func decode(t *testing.T, text string, into *any) {
	t.Helper()
	must.Do(t, yaml.Unmarshal([]byte(text), into))
}

func TestPatchRefuses(t *testing.T) {
	t.Parallel()
	worker := generated(t, "v1.13", machine.TypeWorker, false)
	with := func(more string) []byte { return append(bytes.Clone(worker), more...) }
	type row struct {
		config []byte
		patch  cluster.ConfigPatch
		want   string
	}
	must.Each(t, map[string]row{
		"empty":                   {nil, wanted, "main document"},
		"no YAML":                 {[]byte("machine: [\n"), wanted, "not valid YAML, line 2"},
		"a list":                  {[]byte("- machine\n"), wanted, "not a mapping"},
		"no main document":        {[]byte("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n"), wanted, "main document"},
		"two main documents":      {append(with("---\n"), worker...), wanted, "two documents"},
		"unknown key":             {bytes.Replace(worker, []byte("machine:\n"), []byte("machine:\n    pin: abc\n"), 1), wanted, "unknown keys: machine.pin"},
		"unknown kind":            {with("---\napiVersion: v1alpha1\nkind: TeleportConfig\n"), wanted, "TeleportConfig"},
		"newer version of a kind": {with("---\napiVersion: v9\nkind: VolumeConfig\n"), wanted, "v9"},
		"aliased":                 {bytes.Replace(worker, []byte("    install:\n"), []byte("    sysctls: &x {wipe: \"1\"}\n    install: *x\n    nodeLabels:\n"), 1), wanted, "install is not a plain mapping"},
		"nothing to set":          {worker, cluster.ConfigPatch{}, "neither installer nor disk nor hostname"},
		"a disk nowhere to go":    {[]byte("machine: {type: worker}\n"), cluster.ConfigPatch{Installer: installer}, "Talos would refuse it"},
		"a serial that globs":     {worker, cluster.ConfigPatch{Installer: installer, Disk: cluster.MachineDisk{Serial: "rec*"}, Hostname: "b"}, "alone"},
		"a disk without a name":   {worker, cluster.ConfigPatch{Disk: cluster.MachineDisk{Device: "sda"}}, "alone"},
		"a bad hostname":          {with(""), cluster.ConfigPatch{Installer: installer, Disk: cluster.MachineDisk{Serial: "a1"}, Hostname: strings.Repeat("a", 64)}, "hostname"},
	}, func(t *testing.T, c row) {
		got, err := new(Client).PatchConfig(c.config, c.patch)
		must.FailAs(t, err, fault.Refused, c.want)
		must.Hold(t, got == nil, "%d bytes", len(got))
	})
}

// What an older Talos does not know is refused before any disruption.
func TestPatchRefusesWhatIsNewer(t *testing.T) {
	t.Parallel()
	worker, unattended := generated(t, "v1.12", machine.TypeWorker, false), generated(t, "v1.14", machine.TypeWorker, false)
	with := func(docs ...string) []byte {
		return append(bytes.Clone(worker), "---\napiVersion: v1alpha1\n"+strings.Join(docs, "---\napiVersion: v1alpha1\n")...)
	}
	const environment, module = "kind: EnvironmentConfig\nvariables: {A: b}\n", "kind: KernelModuleConfig\nname: nbd\n"
	const fields = "kind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 1GiB}\nmount: {secure: true}\nscrub: {enabled: false}\n"
	const resolver = "kind: ResolverConfig\nnameservers: [{address: 10.0.0.1, protocol: DoT, tlsServerName: dns.example}]\n"
	scheduler := bytes.Replace(generated(t, "v1.12", machine.TypeControlPlane, false), []byte("\n    scheduler:"), []byte("\n    scheduler:\n        config: {profiles: [{pluginConfig: [{args: {defaultConstraints: [{maxSkew: 1}]}}]}]}"), 1)
	const etcd, ephemeral = "kind: VolumeConfig\nname: ETCD\nprovisioning: {diskSelector: {match: disk.size > 1u}, minSize: 1GiB}\n", "kind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {grow: true}\n"
	type row struct {
		config       []byte
		reader, want string
	}
	must.Each(t, map[string]row{
		"old":                          {with(ephemeral), "v1.12.6", ""},
		"as new":                       {with(environment, module, etcd), "v1.14.1", ""},
		"1.13 for 1.13":                {with(environment), "v1.13.9", ""},
		"1.13 for 1.12":                {with(environment), "v1.12.6", "Talos v1.12.6 would refuse it: EnvironmentConfig came with v1.13"},
		"1.14 for 1.13":                {with(environment, module), "v1.13.9", "Talos v1.13.9 would refuse it: KernelModuleConfig came with v1.14"},
		"both for 1.12":                {with(environment, module, etcd), "v1.12.6", "Talos v1.12.6 would refuse it: EnvironmentConfig came with v1.13; KernelModuleConfig, VolumeConfig ETCD came with v1.14"},
		"a volume":                     {with(ephemeral, etcd), "v1.13.9", "Talos v1.13.9 would refuse it: VolumeConfig ETCD came with v1.14"},
		"fields for 1.13":              {with(fields), "v1.13.9", "Talos v1.13.9 would refuse it: UserVolumeConfig data scrub came with v1.14"},
		"fields for 1.12":              {with(fields, resolver), "v1.12.6", "Talos v1.12.6 would refuse it: UserVolumeConfig data mount came with v1.13; UserVolumeConfig data scrub, ResolverConfig nameservers.protocol, ResolverConfig nameservers.tlsServerName came with v1.14"},
		"fields of 1.14":               {with(fields, resolver), "v1.14.1", ""},
		"of a patch level":             {with("kind: OOMConfig\nstrictCgroupClassOrdering: true\n"), "v1.13.3", "OOMConfig strictCgroupClassOrdering came with v1.13.4"},
		"an integer for the scheduler": {scheduler, "v1.13.3", "Talos v1.13.3 starts no static pod of a control plane with an integer in cluster.scheduler.config (https://github.com/siderolabs/talos/issues/13473)"},
		"for a later one":              {scheduler, "v1.13.4", ""},
		"of that level":                {with("kind: OOMConfig\nstrictCgroupClassOrdering: true\n"), "v1.13.4", ""},
		"never to boot":                {bytes.Replace(unattended, []byte("kind: UnattendedInstallConfig\n"), []byte("kind: UnattendedInstallConfig\nreboot: false\n"), 1), "v1.14.1", "reboot: false"},
		"to boot, stated":              {bytes.Replace(unattended, []byte("kind: UnattendedInstallConfig\n"), []byte("kind: UnattendedInstallConfig\nreboot: true\n"), 1), "v1.14.1", ""},
		"generated for new":            {unattended, "v1.14.1", ""},
	}, func(t *testing.T, c row) {
		p := wanted
		p.Talos = c.reader
		_, err := new(Client).PatchConfig(c.config, p)
		must.Hold(t, (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want) && fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) == 1),
			"err = %v, want %q", err, c.want)
	})
	must.Pass(t, must.Err(new(Client).PatchConfig(scheduler, cluster.ConfigPatch{Installer: installer, Talos: "v1.13.3", Runs: true})))
}

// Whatever is wrong with a configuration, no error quotes one of its values.
func TestErrorsHideValues(t *testing.T) {
	t.Parallel()
	const canary = "S3cr3t-C4nary/Value+1=="
	every := 1 // of the lines
	if testing.Short() {
		every = 5
	}
	for _, version := range []string{"v1.12", "v1.14"} {
		config := generated(t, version, machine.TypeControlPlane, false)
		var secretLines []string
		for line := range strings.Lines(string(config)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && key != "kind" && len(value) > 24 && !strings.ContainsAny(value, " .") && !strings.Contains(value, "://") {
				secretLines = append(secretLines, value)
			}
		}
		must.Hold(t, len(secretLines) >= 5, "%s: only %d secrets in the configuration", version, len(secretLines))
		failed := 0
		lines := strings.SplitAfter(string(config), "\n")
		for i, line := range lines {
			key, _, ok := strings.Cut(line, ":")
			if !ok || strings.HasPrefix(strings.TrimSpace(key), "-") || i%every != 0 {
				continue
			}
			indent := key[:len(key)-len(strings.TrimLeft(key, " "))]
			ways := []string{
				key + ": " + canary + "\n", key + ": [" + canary + "]\n", key + ": {inner: " + canary + "}\n",
				line + indent + "unknownKey: " + canary + "\n", key + ": \"" + canary + "\n", key + ": https://user:" + canary + "@host:port/\n",
			}
			// One way for each line: all of them would take most of a minute with the race detector.
			instead := ways[i%len(ways)]
			broken := strings.Join(lines[:i], "") + instead + strings.Join(lines[i+1:], "")
			_, err := new(Client).PatchConfig([]byte(broken), wanted)
			if err == nil {
				continue
			}
			failed++
			text := strings.Join(append(fault.Hints(err), fmt.Sprintf("%v %+v %#v", err, err, err)), " ")
			must.Hold(t, !strings.Contains(text, canary[:8]), "%s: %q is exposed in: %v", version, instead, err)
			for _, secret := range secretLines {
				must.Hold(t, !strings.Contains(text, secret), "%s: %q exposes a secret in: %v", version, instead, err)
			}
		}
		must.Hold(t, failed >= 40/every, "%s: only %d of the broken configurations were refused", version, failed)
	}
	secret := cluster.Secret(canary)
	text := fmt.Sprintf("%v %+v %#v %s %q", secret, secret, secret, secret, secret)
	must.Hold(t, !strings.Contains(text, canary), "a Secret prints as %s", text)
}

var kubernetesImages = cluster.KubernetesImages{
	APIServer: "registry.k8s.io/kube-apiserver:v1.36.1", ControllerManager: "registry.k8s.io/kube-controller-manager:v1.36.1",
	Scheduler: "registry.k8s.io/kube-scheduler:v1.36.1", KubeProxy: "registry.k8s.io/kube-proxy:v1.36.1", Kubelet: "ghcr.io/siderolabs/kubelet:v1.36.1",
}

// TestPatchKubernetesGenerated: in the output of talosctl for each version, in one
// document or in many, only the tags change, and a second patch changes no byte.
func TestPatchKubernetesGenerated(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		for kind, images := range map[machine.Type]int{machine.TypeControlPlane: 5, machine.TypeWorker: 1} {
			t.Run(fmt.Sprint(version, " ", kind), func(t *testing.T) {
				t.Parallel()
				p := cluster.ConfigPatch{Kubernetes: kubernetesImages}
				if kind == machine.TypeWorker {
					p.Kubernetes = cluster.KubernetesImages{Kubelet: kubernetesImages.Kubelet}
				}
				config := string(generated(t, version, kind, false))
				patched := mustPatch(t, config, p)
				want := config
				for _, c := range cluster.Components {
					if image := p.Kubernetes.Of(c); image != "" {
						want = strings.ReplaceAll(want, strings.TrimSuffix(image, "v1.36.1")+"v1.35.4", image)
					}
				}
				n := strings.Count(patched, ":v1.36.1")
				must.Hold(t, patched == want && n == images, "%d images, got\n%s", n, patched)
				must.Equal(t, "again", patched, mustPatch(t, patched, p))
			})
		}
	}
}

func mustPatch(t *testing.T, config string, p cluster.ConfigPatch) string {
	t.Helper()
	return string(must.Get(new(Client).PatchConfig(cluster.Secret(config), p))(t))
}

// TestPatchKubernetesKeeps: repositories and variants stay; what names no version,
// or pins another by a digest, is refused.
func TestPatchKubernetesKeeps(t *testing.T) {
	t.Parallel()
	config := string(generated(t, "v1.13", machine.TypeControlPlane, true))
	const apiServer, kubelet = "registry.k8s.io/kube-apiserver:v1.35.4", "ghcr.io/siderolabs/kubelet:v1.35.4"
	digest := "@sha256:" + strings.Repeat("0", 64)
	type row struct{ old, fresh, want string }
	must.Each(t, map[string]row{
		"a mirror":            {apiServer, "mirror.local:5000/k8s/kube-apiserver:v1.34.0", "mirror.local:5000/k8s/kube-apiserver:v1.36.1"},
		"a newer one, a slim": {kubelet, "ghcr.io/siderolabs/kubelet:v1.37.0-slim", "ghcr.io/siderolabs/kubelet:v1.36.1-slim"},
		"the same, by digest": {kubelet, kubernetesImages.Kubelet + digest, kubernetesImages.Kubelet + digest},
		"none":                {"        image: " + apiServer, "        disablePodSecurityPolicy: true", kubernetesImages.APIServer},
		"a digest":            {apiServer, apiServer + digest, ""},
		"no version":          {kubelet, "ghcr.io/siderolabs/kubelet:latest", ""},
	}, func(t *testing.T, c row) {
		edited := strings.Replace(config, c.old, c.fresh, 1)
		must.Hold(t, edited != config, "it has no %q", c.old)
		patched, err := new(Client).PatchConfig(cluster.Secret(edited), cluster.ConfigPatch{Kubernetes: kubernetesImages})
		must.Hold(t, (err != nil) == (c.want == "") && strings.Contains(string(patched), c.want),
			"%v, want %q in\n%s", err, c.want, patched)
	})
}

// TestConfigpatcher: why a node's configuration is not patched by Talos' configpatcher. Once it keeps all of this, it should be.
func TestConfigpatcher(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(handWritten, "  install:\n    diskSelector: {type: nvme}\n    image: old\n")
	change := must.Get(configpatcher.LoadPatch([]byte("machine: {install: {diskSelector: {wwid: x}}}\n")))(t)
	apply := func(config string) (string, error) {
		out, err := configpatcher.Apply(configpatcher.WithBytes([]byte(config)), []configpatcher.Patch{change})
		if err != nil {
			return "", err
		}
		b, err := out.Bytes()
		return string(b), err
	}
	got := must.Get(apply(config))(t)
	for text, is := range map[string]bool{"type: worker": true, "# a worker": false, "version: \"\"": true, "certSANs: []": true, "wwid: x": true, "type: nvme": true} {
		must.Hold(t, strings.Contains(got, text) == is, "has %q: %t, in:\n%s", text, !is, got)
	}
	must.Hold(t, must.Err(apply(config+"---\napiVersion: v1alpha1\nkind: LaterConfig\n")) != nil,
		"it takes a document of a kind that it does not know")
}

// A control plane is upgraded in place, then rolled back: its state at each step,
// above all between the installation and the reboot.
func TestInPlace(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		before := l.running(c, cpAddr)
		must.Hold(t, before.NextBoot != "" && before.NextBoot == before.BootEntry,
			"booted %q, next %q", before.BootEntry, before.NextBoot)
		var said []string
		say := func(line string) { said = append(said, line) }
		must.Hold(t, must.Get(c.PullInstaller(ctx, cpAddr, cpUUID, nextInstaller, say))(t) && len(said) != 0, "unsupported, or said %q", said)
		must.Hold(t, !must.Get(c.Install(ctx, cpAddr, cpUUID, nextInstaller, "", say))(t), "it reboots")
		pending := l.running(c, cpAddr)
		must.Hold(t, pending.BootEntry == before.BootEntry && pending.NextBoot != before.NextBoot && pending.NextBoot == strings.ToLower(pending.NextBoot),
			"installed: booted %q, next %q", pending.BootEntry, pending.NextBoot)
		must.Do(t, c.Reboot(ctx, cpAddr, cpUUID, ""))
		upgraded := l.rebooted(c, before.BootID)
		must.Hold(t, upgraded.BootEntry == pending.NextBoot && upgraded.NextBoot == pending.NextBoot && upgraded.Schematic.ID == "beef",
			"upgraded: booted %q, next %q, schematic %s", upgraded.BootEntry, upgraded.NextBoot, upgraded.Schematic.ID)
		must.Do(t, c.Rollback(ctx, cpAddr, cpUUID))
		back := l.rebooted(c, upgraded.BootID)
		must.Equal(t, "rolled back: booted, schematic", []string{before.BootEntry, "cafe"}, []string{back.BootEntry, back.Schematic.ID})
	})
}

func (l *lab) rebooted(c *Client, bootID string) cluster.Machine {
	l.t.Helper()
	return await(l.t, func() (cluster.Machine, error) { return cluster.ReadMachine(l.t.Context(), c, cpAddr) },
		func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready && m.BootID != bootID })
}

// The configuration of a node in use is replaced, and only by one that Talos accepts.
func TestReplaceConfig(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		before := l.running(c, cpAddr)
		config := must.Get(c.MachineConfig(ctx, cpAddr))(t)
		patched := must.Get(c.PatchConfig(config, cluster.ConfigPatch{Installer: nextInstaller}))(t)
		patched = append(patched, "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption:\n  provider: luks2\n  keys:\n    - {slot: 0, tpm: {}, lockToState: true}\n"...)
		must.Do(t, c.ReplaceConfig(ctx, cpAddr, cpUUID, patched))
		stored, err := c.MachineConfig(ctx, cpAddr)
		must.Hold(t, err == nil && bytes.Equal(stored, patched),
			"stored configuration differs from the applied one; err = %v", err)
		now := l.running(c, cpAddr)
		must.Hold(t, now.InstallImage == nextInstaller && now.BootID == before.BootID && before.Encryption == nil,
			"before %+v, after %+v", before, now)
		encrypted := []cluster.Encryption{{Volume: "EPHEMERAL", Keys: []string{"tpm"}, LockToState: true}}
		must.Equal(t, "encryption", encrypted, now.Encryption)
	})
}

// A question about a configuration does not end a trial that somebody runs: Talos takes it back in time. The answer says whether the
// configuration needs a reboot.
func TestCheckConfigLeavesATrialAlone(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		l.running(c, cpAddr)
		config := must.Get(c.MachineConfig(ctx, cpAddr))(t)
		with := func(field string) cluster.Secret {
			return bytes.Replace(config, []byte("\nmachine:\n"), []byte("\nmachine:\n    "+field+"\n"), 1)
		}
		runs := func() cluster.Secret { return must.Get(c.MachineConfigs(ctx, cpAddr))(t).Active }
		before := runs()
		must.Do(t, c.TryConfig(ctx, cpAddr, cpUUID, with("sysctls: {a: b}"), 5*time.Minute))
		must.Hold(t, !bytes.Equal(before, runs()), "the configuration is not on trial")
		for field, want := range map[string]bool{"sysctls: {a: c}": false, "udev: {rules: [a]}": true} {
			reboots, err := c.CheckConfig(ctx, cpAddr, cpUUID, with(field))
			must.Hold(t, err == nil && reboots == want, "%s reboots: %t, %v", field, reboots, err)
		}
		time.Sleep(6 * time.Minute)
		must.Hold(t, bytes.Equal(before, runs()), "the trial did not end by itself")
	})
}

// The lab's etcd as the client sees it, complete and broken.
func TestEtcdOfTheLab(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		members := must.Get(c.EtcdMembers(ctx, cpAddr))(t)
		want := []cluster.EtcdMember{{Name: "cp1", Peers: []string{"https://127.42.7.11:2380"}}}
		must.Equal(t, "members", want, members, cmpopts.IgnoreFields(cluster.EtcdMember{}, "ID"))
		status, err := c.EtcdStatus(ctx, cpAddr)
		must.Hold(t, err == nil && status.MemberID == members[0].ID && status.Leader == members[0].ID && status.Version != "" && status.DBBytes != 0 && status.Errors == nil,
			"status = %+v, err = %v", status, err)
		var whole bytes.Buffer
		must.Fail(t, c.EtcdSnapshot(ctx, cpAddr, 42, &whole), "answers there now, not 2a")
		must.Equal(t, "bytes of another member", 0, whole.Len())
		must.Pass(t, c.EtcdSnapshot(ctx, cpAddr, 0, &whole))
		must.Hold(t, whole.Len() != 0, "an empty snapshot")
		must.Fail(t, c.EtcdForfeit(ctx, cpAddr, cpUUID), "only one member")
		l.fw.BreakEtcd(9000, talosapi.EtcdFault{NoSpace: true, Snapshot: talosapi.SnapshotBroken})
		status, err = c.EtcdStatus(ctx, cpAddr)
		must.Hold(t, err == nil && strings.Contains(strings.Join(status.Errors, "; "), "alarm NOSPACE on member cp1"),
			"status = %+v, err = %v", status, err)
		var part bytes.Buffer
		err = c.EtcdSnapshot(ctx, cpAddr, 0, &part)
		must.Hold(t, err != nil && part.Len() < whole.Len(), "broken snapshot of %d of %d bytes, err = %v", part.Len(), whole.Len(), err)
	})
}

// Before 1.13 maintenance mode is another service with other behaviour. Both report
// what recast needs from a blank machine.
func TestMaintenanceOfEachRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	type row struct {
		version, arch string
		bootID        bool
	}
	must.Bubbles(t, map[string]row{
		"another service": {"v1.12.6", "", false}, "no boot ID": {"v1.13.9", "amd64", false}, "all": {"v1.14.1", "amd64", true},
	}, func(t *testing.T, want row) {
		l := newLab(t)
		c := l.client(role.Admin)
		l.running(c, cpAddr)
		l.boots.TalosVersion = want.version
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		m := l.maintenance(c, workerAddr)
		got := cluster.RunningSystem{TalosVersion: m.TalosVersion, Arch: m.Arch, Platform: m.Platform, Schematic: m.Schematic, FromISO: m.FromISO}
		must.Equal(t, "system", cluster.RunningSystem{
			TalosVersion: want.version, Arch: want.arch, Platform: "nocloud", FromISO: true,
			Schematic: cluster.SchematicEntry{ID: "cafe", YAML: image().SchematicYAML},
		}, got)
		must.Hold(t, m.UUID == workerUUID && len(m.Disks) == 1 && m.Disks[0].Blank && (m.BootID != "") == want.bootID && len(m.Fingerprint) == 44,
			"%+v", m)
		config := l.config(talosapi.Machine{Hostname: "wk1.lab.internal", Installer: installer, InstallSerial: "recast-1"})
		must.Do(t, c.ApplyConfig(t.Context(), workerAddr, cluster.Proof{UUID: workerUUID, SKU: workerSKU}, config))
		running := l.running(c, workerAddr)
		must.Equal(t, "names", []string{"wk1", "wk1.lab.internal"}, []string{running.Hostname, running.Nodename})
		members := must.Get(c.Members(t.Context()))(t)
		must.Hold(t, len(members) == 2 && members[1].Nodename == "wk1.lab.internal", "members %+v", members)
	})
}

// read reads one file of the control plane.
func read(ctx context.Context, c *Client, name string, sizeBytes int64) (text string, err error) {
	var b bytes.Buffer
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.Read(ctx, name, sizeBytes, &b)
	})
	return b.String(), err
}

// paths lists a directory of the control plane.
func paths(ctx context.Context, c *Client, dir string, deep bool) (list []string, err error) {
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.List(ctx, dir, deep, func(f cluster.MachineFile) error {
			list = append(list, f.Path+" "+f.Mode.String()+" "+f.Link)
			return nil
		})
	})
	return list, err
}

func TestFiles(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()

		const name, text = "/proc/cmdline", "talos.platform=nocloud\n"
		must.Equal(t, "read", text, must.Get(read(ctx, c, name, int64(len(text))))(t))
		for size, want := range map[int64]string{5: "it is longer than the 5 bytes listed", 50: "it ended after 23 of 50 bytes"} {
			must.Equal(t, want, "127.42.7.11: read /proc/cmdline: "+want, fmt.Sprint(must.Err(read(ctx, c, name, size))))
		}
		want := []string{
			"/usr/local/share/ca-certificates Lrwxrwxrwx /etc/ssl", "/usr/local/share/schematic drwxr-xr-x ", "/usr/local/share/schematic/cafe -rw-r--r-- ",
		}
		must.Equal(t, "list", want, must.Get(paths(ctx, c, "/usr/local/share", true))(t))
		must.Equal(t, "list one level", want[:2], must.Get(paths(ctx, c, "/usr/local/share", false))(t))
		must.FailIs(t, must.Err(paths(ctx, c, "/usr/none", true)), cluster.ErrNotFound)

		reader := l.client(role.Reader)
		must.Fail(t, must.Err(read(ctx, reader, name, 23)), "it takes a talosconfig with the role os:admin to read a node's files: our talosconfig may not: not authorized")
		err := c.Files(ctx, cpAddr, workerUUID, func(context.Context, cluster.MachineFiles) error { return errors.New("it looked") })
		must.Hold(t, fault.KindOf(err) == fault.Refused && strings.HasSuffix(err.Error(), "none of its files was read"),
			"another machine: %v", err)
		err = c.Files(ctx, netip.MustParseAddr("127.42.7.99"), cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
			return files.Read(ctx, name, 1, io.Discard)
		})
		must.Hold(t, err != nil && !errors.Is(err, cluster.ErrNotFound), "a missing machine is not one without files: %v", err)
	})
}

func TestClaims(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		want := observe.Claims{
			TalosVersion: labVersion, Arch: "amd64", Platform: "nocloud",
			Layers: []observe.ExtensionLayer{
				{Name: "qemu-guest-agent", Version: "10.0.2"},
				{Name: "iscsi-tools", Version: "v0.2.0"},
				{Name: "schematic", Version: "cafe", Author: "Image Factory (http://127.0.0.1:8080)", ExtraInfo: image().SchematicYAML},
				{Name: "modules.dep", Version: "6.18.0-talos"},
			},
			Booted: observe.BootClaims{Entry: "talos-v1.13.9.efi", Next: "talos-v1.13.9.efi", UKI: new(true), Cmdline: true},
		}
		for _, r := range []role.Role{role.Admin, role.Reader} {
			if r == role.Reader {
				want.Booted.Next = "" // it is in a file
			}
			must.Equal(t, string(r), want, must.Get(l.client(r).Claims(t.Context(), cpAddr, cpUUID))(t))
		}
		must.FailAs(t, must.Err(l.client(role.Admin).Claims(t.Context(), cpAddr, workerUUID)), fault.Refused)
	})
}

// TestTaken: only an address that stays silent is free.
func TestTaken(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		c := l.clientWith(Options{Talosconfig: must.Get(l.cluster.Talosconfig(role.Admin, "127.42.7.99:50000"))(t)})
		must.Get(l.net.Listen("127.42.7.12:9999"))(t)
		for addr, want := range map[string]string{
			cpAddr.String(): "a host that answers at 127.42.7.11:50000", // and asks for a certificate
			"127.42.7.12":   "a host that refuses connections to 127.42.7.12:50000",
			"127.42.7.98":   "",
			"127.42.7.99":   "an endpoint of the talosconfig",
		} {
			must.Equal(t, addr, want, must.Get(c.Taken(t.Context(), netip.MustParseAddr(addr)))(t))
		}
	})
}

// TestTakenByNetworkErrors: the network's word about an address counts only if it is about that address.
func TestTakenByNetworkErrors(t *testing.T) {
	const proxy = "127.42.7.200:1080"
	failed := func(op, at string, err error) func(string) error {
		return func(to string) error {
			addr, _ := net.ResolveTCPAddr("tcp", cmp.Or(at, to))
			return &net.OpError{Op: op, Net: "tcp", Addr: addr, Err: err}
		}
	}
	type row struct {
		err            func(to string) error // nothing comes back at all
		taken, unknown bool
	}
	must.Bubbles(t, map[string]row{
		"silence":                {},
		"timeout":                {err: failed("dial", "", syscall.ETIMEDOUT)},
		"no such host":           {err: failed("dial", "", syscall.EHOSTUNREACH)},
		"refused":                {err: failed("dial", "", syscall.ECONNREFUSED), taken: true},
		"reset":                  {err: failed("dial", "", syscall.ECONNRESET), taken: true},
		"no network":             {err: failed("dial", "", syscall.ENETUNREACH), unknown: true},
		"forbidden":              {err: failed("dial", "", syscall.EACCES), unknown: true},
		"a proxy is not there":   {err: failed("dial", proxy, syscall.EHOSTUNREACH), unknown: true},
		"a proxy is silent":      {err: failed("dial", proxy, syscall.ETIMEDOUT), unknown: true},
		"a proxy finds no host":  {err: failed("socks connect", "", syscall.EHOSTUNREACH), unknown: true},
		"a proxy says something": {err: func(string) error { return errors.New("502 Bad Gateway") }, unknown: true},
	}, func(t *testing.T, c row) {
		l := newLab(t)
		raw := must.Get(l.cluster.Talosconfig(role.Admin, cpAddr.String()))(t)
		way := l.clientWith(Options{Talosconfig: raw, Dial: func(ctx context.Context, _, to string) (net.Conn, error) {
			if c.err != nil {
				return nil, c.err(to)
			}
			<-ctx.Done()
			addr, _ := net.ResolveTCPAddr("tcp", to)
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: ctx.Err()}
		}})
		began := time.Now()
		by, err := way.Taken(t.Context(), netip.MustParseAddr("127.42.7.98"))
		must.Hold(t, (by != "") == c.taken && (err != nil) == c.unknown && (!c.unknown || strings.Contains(err.Error(), "check whether 127.42.7.98")) && (len(fault.Hints(err)) != 0 || !c.unknown),
			"%q, %v, hints %q", by, err, fault.Hints(err))
		must.Take(t, began, 0, 10*time.Second)
	})
}

// ofRole is the configuration of a node with the defaults of a release.
func ofRole(t *testing.T, role machine.Type, bundle *secrets.Bundle, contract *config.VersionContract, endpoint string) cluster.Secret {
	t.Helper()
	in := must.Get(generate.NewInput("home", endpoint, "1.35.4", generate.WithSecretsBundle(bundle), generate.WithVersionContract(contract)))(t)
	return must.Get(must.Get(in.Config(role))(t).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)))(t)
}

// TestConfigEffect: what another configuration does to a node, whichever documents it is written in.
func TestConfigEffect(t *testing.T) {
	t.Parallel()
	const here = "https://10.0.0.1:6443"
	ours := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	old := ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_13, here)
	with := func(line string) cluster.Secret {
		return cluster.Secret(strings.Replace(string(old), "machine:\n", "machine:\n    "+line+"\n", 1))
	}
	type row struct {
		wanted                    cluster.Secret
		identity, reboot, unknown []string
	}
	must.Each(t, map[string]row{
		"the same":                     {wanted: old},
		"the documents of 1.14":        {wanted: ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_14, here), reboot: []string{"SecurityProfileConfig"}},
		"another endpoint":             {wanted: ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_13, "https://10.0.0.2:6443"), identity: []string{"the cluster's endpoint"}},
		"a sysctl":                     {wanted: with(`sysctls: {vm.swappiness: "1"}`)},
		"an annotation":                {wanted: with("nodeAnnotations: {rack: r7}")},
		"a rule of udev":               {wanted: with(`udev: {rules: ["x"]}`), reboot: []string{"machine.udev.rules"}},
		"an argument of etcd":          {wanted: cluster.Secret(strings.Replace(string(old), "    etcd:\n", "    etcd:\n        extraArgs: {max-wals: \"7\"}\n", 1)), reboot: []string{"cluster.etcd.extraArgs.max-wals"}},
		"a registry's password":        {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: u\npassword: p\n"...), reboot: []string{"RegistryAuthConfig"}},
		"a module of the kernel":       {wanted: with("kernel: {modules: [{name: zfs}]}")},
		"an argument of the scheduler": {wanted: cluster.Secret(strings.Replace(string(old), "    scheduler:\n", "    scheduler:\n        extraArgs: {v: \"4\"}\n", 1))},
		"a variable":                   {wanted: with("env: {http_proxy: http://p}"), reboot: []string{"machine.env.http_proxy"}},
		"a variable in its document":   {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {http_proxy: http://p}\n"...), reboot: []string{"EnvironmentConfig"}},
		"a document of a later Talos":  {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: TeleportConfig\nname: x\n"...), unknown: []string{"TeleportConfig of v1alpha1"}},
	}, func(t *testing.T, tc row) {
		got, err := (&Client{}).ConfigEffect(old, tc.wanted)
		must.Hold(t, err == nil && slices.Equal(got.Identity, tc.identity) && slices.Equal(got.Reboot, tc.reboot) && slices.Equal(got.Unknown, tc.unknown),
			"%+v, %v", got, err)
	})
	for keys, want := range map[string]cluster.Encryption{
		"{slot: 0, kms: {endpoint: 'https://kms.example'}}":                        {Volume: "u-data", Keys: []string{"kms"}},
		"{slot: 0, tpm: {checkSecurebootStatusOnEnroll: true}}":                    {Volume: "u-data", Keys: []string{"tpm"}},
		"{slot: 0, static: {passphrase: hush}}, {slot: 1, nodeID: {}}":             {Volume: "u-data", Keys: []string{"nodeID", "static"}},
		"{slot: 0, nodeID: {}, lockToState: true}, {slot: 1, tpm: {}}":             {Volume: "u-data", Keys: []string{"nodeID", "tpm"}, LockToState: true},
		"{slot: 0, tpm: {options: {pcrs: [7]}}, lockToState: true}":                {Volume: "u-data", Keys: []string{"tpm"}, LockToState: true},
		"{slot: 0, kms: {endpoint: 'https://kms.example'}}, {slot: 1, nodeID: {}}": {Volume: "u-data", Keys: []string{"kms", "nodeID"}},
	} {
		file := append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 1GB}\nencryption: {provider: luks2, keys: ["+keys+"]}\n"...)
		must.Equal(t, keys, []cluster.Encryption{want}, must.Get((&Client{}).ConfigEffect(old, file))(t).Encryption)
	}
	loaded, other := with("kernel: {modules: [{name: zfs}, {name: nbd, parameters: [a=1]}]}"), with("kernel: {modules: [{name: nbd, parameters: [a=2]}]}")
	must.Equal(t, "of a loaded module", []string{"parameters of kernel module nbd"}, must.Get((&Client{}).ConfigEffect(loaded, other))(t).Reboot)
	of := func(kind string) cluster.Secret {
		return cluster.Secret(strings.Replace(string(old), "type: controlplane", "type: "+kind, 1))
	}
	ordinary := must.Get((&Client{}).ConfigEffect(of("init"), old))(t)
	must.Equal(t, "of a node of type init that becomes an ordinary control plane", [][]string{nil, {"machine.type"}}, [][]string{ordinary.Identity, ordinary.Reboot})
	must.Equal(t, "of a control plane that becomes one of type init", []string{cluster.NodeRole}, must.Get((&Client{}).ConfigEffect(old, of("init")))(t).Identity)
	theirs := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	got := must.Get((&Client{}).ConfigEffect(old, ofRole(t, machine.TypeControlPlane, theirs, config.TalosVersion1_13, here)))(t)
	must.Equal(t, "what differs of another cluster besides role, endpoint and name", len(identities)-3, len(got.Identity))
}

// TestFilesOfTwoRoles: a worker's configuration is held against a control plane's in what both have, in
// whatever documents, and each against the talosconfig.
func TestFilesOfTwoRoles(t *testing.T) {
	t.Parallel()
	ours, theirs := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t), must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	mixed, certs := *ours, *ours.Certs
	mixed.Certs, certs.OS = &certs, theirs.Certs.OS
	foreign, kubernetes := *ours, *ours.Certs
	foreign.Certs, kubernetes.K8s = &kubernetes, theirs.Certs.K8s // the CA of another Kubernetes
	const here = "https://10.0.0.1:6443"
	m := &Client{config: &clientconfig.Config{Context: "c", Contexts: map[string]*clientconfig.Context{"c": {CA: base64.StdEncoding.EncodeToString(ours.Certs.OS.Crt)}}}}
	for _, contract := range []*config.VersionContract{config.TalosVersion1_12, config.TalosVersion1_13, config.TalosVersion1_14} {
		runs := ofRole(t, machine.TypeControlPlane, ours, contract, here)
		same, other := ofRole(t, machine.TypeWorker, ours, contract, here), ofRole(t, machine.TypeWorker, &mixed, contract, here)
		apart := ofRole(t, machine.TypeWorker, &foreign, contract, here)
		for what, c := range map[string]struct {
			was, is cluster.Secret
			want    []string
		}{
			"of the same cluster":          {runs, same, []string{cluster.NodeRole}},
			"with the CA of another":       {runs, other, []string{cluster.NodeRole, cluster.TalosCA}},
			"the CA of another Kubernetes": {runs, apart, []string{cluster.NodeRole, kubernetesCA}},
			"the CA of another Kubernetes, of a control plane beside a worker": {apart, runs, []string{cluster.NodeRole, kubernetesCA}},
			"the CA of another Kubernetes, beside a worker":                    {same, apart, []string{kubernetesCA}},
			"of the same worker": {same, same, nil},
		} {
			must.Equal(t, fmt.Sprint(contract, ": ", what), c.want, must.Get(m.ConfigEffect(c.was, c.is))(t).Identity)
		}
		for text, want := range map[string]bool{string(runs): true, string(same): true, string(other): false} {
			trusted, known, err := m.TrustedCA(cluster.Secret(text))
			must.Hold(t, trusted == want && known && err == nil, "%v: trusted %v, known %v, %v", contract, trusted, known, err)
		}
	}
	m.config.Contexts["c"].CA = ""
	_, known, err := m.TrustedCA(nil)
	must.Hold(t, !known && err == nil, "a talosconfig without a CA: %v, %v", known, err)
}

func TestKubeletGates(t *testing.T) {
	t.Parallel()
	got := kubeletGates(&k8s.KubeletSpecSpec{
		Args:   []string{"--v=2", "--feature-gates=A=true,B=false"},
		Config: map[string]any{"featureGates": map[string]any{"C": true}},
	})
	want := []string{"A=true", "B=false", "C"}
	must.Hold(t, slices.Equal(got, want), "%q, want %q", got, want)
}

// TestSameConfig: the formatting of a configuration does not matter.
func TestSameConfig(t *testing.T) {
	t.Parallel()
	const config = "version: v1alpha1\nmachine:\n  type: worker\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: wk1\n"
	for name, tc := range map[string]struct {
		other string
		same  bool
	}{
		"the same":          {config, true},
		"a comment":         {"# mine\n" + config, true},
		"an empty one":      {config + "---\n", true},
		"another type":      {"version: v1alpha1\nmachine:\n  type: controlplane\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: wk1\n", false},
		"one document less": {"version: v1alpha1\nmachine:\n  type: worker\n", false},
		"unreadable":        {"\tversion", false},
	} {
		must.Equal(t, name, tc.same, sameConfig([]byte(config), []byte(tc.other)))
	}
}

// What recast sets itself is no difference, whichever document or notation has it on either side.
func TestWhatRecastSetsIsNoDifference(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		base := string(l.config(talosapi.Machine{Hostname: "wk1", Installer: installer, InstallSerial: "recast-1"}))
		bare, _, found := strings.Cut(base, "---\napiVersion: v1alpha1\nkind: HostnameConfig\n")
		must.Hold(t, found, "the lab's configurations have no HostnameConfig:\n%s", base)
		with := func(doc string) string { return bare + "---\napiVersion: v1alpha1\nkind: HostnameConfig\n" + doc }
		replaced := func(old, new string) string {
			must.Contain(t, "configuration", base, old)
			return strings.Replace(base, old, new, 1)
		}
		all := []string{
			base, bare, with("auto: stable\n"), with("auto: \"off\"\nhostname: other\n"), strings.Replace(bare, "machine:\n", "machine:\n    network:\n        hostname: other\n", 1),
			replaced("diskSelector:\n            serial: recast-1", "disk: /dev/sda"), replaced("serial: recast-1", "size: '>= 10GB'"), replaced(installer, "ghcr.io/siderolabs/installer:v1.13.8"),
		}
		for _, runs := range all {
			for _, file := range all {
				f := must.Get(observe.CompareConfigs(c, cluster.Configs{Stored: cluster.Secret(runs), Active: cluster.Secret(runs)}, cluster.Secret(file), labVersion, labVersion))(t)
				must.Hold(t, !f.Differs() && len(f.Identity) == 0, "%+v\n%s\n--- and\n%s", f, runs, file)
			}
		}
	})
}
