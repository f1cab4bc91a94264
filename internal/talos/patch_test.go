package talos

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

var wanted = cluster.ConfigPatch{Installer: installer, Disk: cluster.MachineDisk{Device: "sda", WWID: "naa.30a1b2c3d4e5f607", BusPath: "/pci0000:00/2:0:0:0"}, Hostname: "wk1"}

// generated is the output of talosctl gen config for that version of Talos.
func generated(t *testing.T, version string, kind machineconf.Type, comments bool) []byte {
	t.Helper()
	contract := must.Get(talosconfig.ParseContractFromVersion(version))(t)
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
		for _, kind := range []machineconf.Type{machineconf.TypeWorker, machineconf.TypeControlPlane} {
			for _, comments := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s comments=%t", version, kind, comments), func(t *testing.T) {
					t.Parallel()
					config := generated(t, version, kind, comments)
					patched := patch(t, config)
					cfg := must.Get(configloader.NewFromBytes(patched))(t)
					if u := cfg.UnattendedInstallConfig(); u != nil {
						if got := fmt.Sprintf("%s %s %t", u.InstallerImage(), u.VolumeSelector(), u.VolumeWipe()); got != installer+` disk.wwid == "naa.30a1b2c3d4e5f607" false` {
							t.Errorf("unattended install of %s", got)
						}
					} else if in := cfg.Machine().Install(); in.Image() != installer || in.Disk() != "" || in.Zero() {
						t.Errorf("install = %+v", in)
					}
					must.Equal(t, "hostname", "wk1", cfg.NetworkHostnameConfig().Hostname())
					if changed := changedLines(config, patched); changed > 9 {
						t.Errorf("%d lines differ", changed)
					}
					if again := patch(t, patched); !bytes.Equal(again, patched) {
						t.Errorf("second patch (-first +second):\n%s", cmp.Diff(string(patched), string(again)))
					}
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
			if !strings.HasSuffix(got, tail) {
				t.Error("the untouched document changed")
			}
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
			config := generated(t, version, machineconf.TypeWorker, false)
			patched, err := new(Client).PatchConfig(config, c.patch)
			if got := changedLines(config, patched); err != nil || got != want {
				t.Errorf("%s, %s: %d lines differ, want %d; err = %v\n%s", name, version, got, want, err, cmp.Diff(string(config), string(patched)))
			}
		}
	}
}

// TestPatchKeepsEmptyDocuments: a file may begin with a comment and a line of ---,
// or end with such a line. Talos skips an empty document.
func TestPatchKeepsEmptyDocuments(t *testing.T) {
	t.Parallel()
	config := generated(t, "v1.14", machineconf.TypeWorker, false)
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
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}

func TestPatchRefuses(t *testing.T) {
	t.Parallel()
	worker := generated(t, "v1.13", machineconf.TypeWorker, false)
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
		if got != nil || err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != fault.Refused {
			t.Errorf("err = %v, want %q; %d bytes", err, c.want, len(got))
		}
	})
}

// What an older Talos does not know is refused before any disruption.
func TestPatchRefusesWhatIsNewer(t *testing.T) {
	t.Parallel()
	worker, unattended := generated(t, "v1.12", machineconf.TypeWorker, false), generated(t, "v1.14", machineconf.TypeWorker, false)
	with := func(docs ...string) []byte {
		return append(bytes.Clone(worker), "---\napiVersion: v1alpha1\n"+strings.Join(docs, "---\napiVersion: v1alpha1\n")...)
	}
	const environment, module = "kind: EnvironmentConfig\nvariables: {A: b}\n", "kind: KernelModuleConfig\nname: nbd\n"
	const fields = "kind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 1GiB}\nmount: {secure: true}\nscrub: {enabled: false}\n"
	const resolver = "kind: ResolverConfig\nnameservers: [{address: 10.0.0.1, protocol: DoT, tlsServerName: dns.example}]\n"
	scheduler := bytes.Replace(generated(t, "v1.12", machineconf.TypeControlPlane, false), []byte("\n    scheduler:"), []byte("\n    scheduler:\n        config: {profiles: [{pluginConfig: [{args: {defaultConstraints: [{maxSkew: 1}]}}]}]}"), 1)
	const etcd, ephemeral = "kind: VolumeConfig\nname: ETCD\nprovisioning: {diskSelector: {match: disk.size > 1u}, minSize: 1GiB}\n", "kind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {grow: true}\n"
	type row struct {
		config []byte
		reader string
		want   string
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
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) != 1) {
			t.Errorf("err = %v, want %q", err, c.want)
		}
	})
	if _, err := new(Client).PatchConfig(scheduler, cluster.ConfigPatch{Installer: installer, Talos: "v1.13.3", Runs: true}); err != nil {
		t.Errorf("what a machine runs already can't be compared with what mends it: %v", err)
	}
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
		config := generated(t, version, machineconf.TypeControlPlane, false)
		var secretLines []string
		for line := range strings.Lines(string(config)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && key != "kind" && len(value) > 24 && !strings.ContainsAny(value, " .") && !strings.Contains(value, "://") {
				secretLines = append(secretLines, value)
			}
		}
		if len(secretLines) < 5 {
			t.Fatalf("%s: only %d secrets in the configuration", version, len(secretLines))
		}
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
			if strings.Contains(text, canary[:8]) {
				t.Fatalf("%s: %q is exposed in: %v", version, instead, err)
			}
			for _, secret := range secretLines {
				if strings.Contains(text, secret) {
					t.Fatalf("%s: %q exposes a secret in: %v", version, instead, err)
				}
			}
		}
		if failed < 40/every {
			t.Errorf("%s: only %d of the broken configurations were refused", version, failed)
		}
	}
	secret := cluster.Secret(canary)
	if text := fmt.Sprintf("%v %+v %#v %s %q", secret, secret, secret, secret, secret); strings.Contains(text, canary) {
		t.Errorf("a Secret prints as %s", text)
	}
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
		for kind, images := range map[machineconf.Type]int{machineconf.TypeControlPlane: 5, machineconf.TypeWorker: 1} {
			t.Run(fmt.Sprint(version, " ", kind), func(t *testing.T) {
				t.Parallel()
				p := cluster.ConfigPatch{Kubernetes: kubernetesImages}
				if kind == machineconf.TypeWorker {
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
				if n := strings.Count(patched, ":v1.36.1"); patched != want || n != images {
					t.Errorf("%d images, got\n%s", n, patched)
				}
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
	config := string(generated(t, "v1.13", machineconf.TypeControlPlane, true))
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
		if edited == config {
			t.Fatalf("it has no %q", c.old)
		}
		patched, err := new(Client).PatchConfig(cluster.Secret(edited), cluster.ConfigPatch{Kubernetes: kubernetesImages})
		if (err != nil) != (c.want == "") || !strings.Contains(string(patched), c.want) {
			t.Errorf("%v, want %q in\n%s", err, c.want, patched)
		}
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
		if strings.Contains(got, text) != is {
			t.Errorf("has %q: %t, in:\n%s", text, !is, got)
		}
	}
	if _, err := apply(config + "---\napiVersion: v1alpha1\nkind: LaterConfig\n"); err == nil {
		t.Error("it takes a document of a kind that it does not know")
	}
}
