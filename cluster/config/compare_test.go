package config_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/sim/must"
)

func parse(t *testing.T, text string) config.Documents {
	t.Helper()
	docs, err := config.Parse([]byte(text))
	must.Be(t, err == nil, "%v\n%s", err, text)
	return docs
}

// TestEqual: configurations that Talos reads as the same are equal, and have the same hash.
func TestEqual(t *testing.T) {
	t.Parallel()
	type row struct{ a, b string }
	must.Each(t, map[string]row{
		"order of keys":           {"machine: {type: worker, token: x}", "machine: {token: x, type: worker}"},
		"order of documents":      {"machine: {}\n---\nkind: A\n---\nkind: B\nname: x", "kind: B\nname: x\n---\nkind: A\n---\nmachine: {}"},
		"comments and style":      {"# why\nmachine:\n    type: worker # yes", "machine: {\"type\": 'worker'}"},
		"an empty document":       {"---\n# nothing\n---\nmachine: {a: 1}\n---\n", "machine: {a: 1}"},
		"a number as a text":      {"machine: {sysctls: {vm.swappiness: 10}}", "machine: {sysctls: {vm.swappiness: \"10\"}}"},
		"a bool as a text":        {"a: true", "a: \"true\""},
		"octal numbers":           {"permissions: 0o644", "permissions: 0644"},
		"block and quoted text":   {"a: |\n  x\n  y\n", "a: \"x\\ny\\n\""},
		"null and absent":         {"machine: {type: worker, network: null, time: ~}", "machine: {type: worker}"},
		"an alias":                {"a: &x {b: 1}\nc: *x", "a: {b: 1}\nc: {b: 1}"},
		"a merge":                 {"a: &x {b: 1, d: 2}\nc: {<<: *x, d: 3}", "a: {b: 1, d: 2}\nc: {b: 1, d: 3}"},
		"apiVersion of documents": {"apiVersion: v1alpha1\nkind: A", "kind: A\napiVersion: v1alpha1"},
	}, func(t *testing.T, c row) {
		a, b := parse(t, c.a), parse(t, c.b)
		must.Equal(t, "differ", 0, len(config.Compare(a, b)))
		must.Equal(t, "hash", b.Hash(), a.Hash())
	})
}

type comparison struct {
	found, wanted string
	want          []config.Change
}

// compared are differences, and how they are reported.
var compared = map[string]comparison{
	"a field": {
		"machine: {network: {mtu: 1500}, type: worker}", "machine: {network: {mtu: 9000}, time: {disabled: true}}",
		[]config.Change{
			{"v1alpha1", "machine.network.mtu", config.Changed, "1500", "9000"},
			{"v1alpha1", "machine.time.disabled", config.Added, "", "true"},
			{"v1alpha1", "machine.type", config.Removed, "worker", ""},
		},
	},
	"documents": {
		"kind: HostnameConfig\nhostname: a\n---\nkind: UserVolumeConfig\nname: data\nsize: 1GiB", "kind: HostnameConfig\nhostname: a\n---\napiVersion: v1alpha1\nkind: NewerThanRecast\nsome: {thing: 1}",
		[]config.Change{
			{"NewerThanRecast", "", config.Added, "", ""},
			{"NewerThanRecast", "some.thing", config.Added, "", "1"},
			{"UserVolumeConfig data", "", config.Removed, "", ""},
			{"UserVolumeConfig data", "name", config.Removed, "data", ""},
			{"UserVolumeConfig data", "size", config.Removed, "1GiB", ""},
		},
	},
	"a document that says nothing": {"", "kind: A", []config.Change{{"A", "", config.Added, "", ""}}},
	"two of one kind":              {"kind: A\nx: 1\n---\nkind: A\nx: 2", "kind: A\nx: 1\n---\nkind: A\nx: 3", []config.Change{{"A (2)", "x", config.Changed, "2", "3"}}},
	"entries": {
		"certSANs: [a, b]", "certSANs: [b, c]",
		[]config.Change{{"v1alpha1", "certSANs", config.Removed, "a", ""}, {"v1alpha1", "certSANs", config.Added, "", "c"}},
	},
	"another order": {
		"nameservers: [1.1.1.1, 8.8.8.8]", "nameservers: [8.8.8.8, 1.1.1.1, 9.9.9.9]",
		[]config.Change{
			{"v1alpha1", "nameservers", config.Added, "", "9.9.9.9"},
			{"v1alpha1", "nameservers", config.Reordered, "[1.1.1.1, 8.8.8.8]", "[8.8.8.8, 1.1.1.1, 9.9.9.9]"},
		},
	},
	"entries with a name": {
		"i: [{interface: eth0, mtu: 1500}, {interface: eth1}]", "i: [{interface: eth1, dhcp: true}, {interface: eth0, mtu: 9000}]",
		[]config.Change{
			{"v1alpha1", "i[eth0].mtu", config.Changed, "1500", "9000"},
			{"v1alpha1", "i[eth1].dhcp", config.Added, "", "true"},
			{"v1alpha1", "i", config.Reordered, "[{interface: eth0, mtu: 1500}, {interface: eth1}]", "[{dhcp: true, interface: eth1}, {interface: eth0, mtu: 9000}]"},
		},
	},
	"entries without one": {
		"keys: [{nodeID: {}, slot: 0}]", "keys: [{tpm: {}, slot: 0}, {slot: 1}]",
		[]config.Change{
			{"v1alpha1", "keys[0].nodeID", config.Removed, "{}", ""},
			{"v1alpha1", "keys[0].tpm", config.Added, "", "{}"},
			{"v1alpha1", "keys[1].slot", config.Added, "", "1"},
		},
	},
	"duplicates":            {"a: [x, x]", "a: [x]", []config.Change{{"v1alpha1", "a[1]", config.Removed, "x", ""}}},
	"nothing in an entry":   {"a: [{b: 1}]", "a: [{b: 1}, ~]", []config.Change{{"v1alpha1", "a[1]", config.Added, "", "null"}}},
	"another kind of value": {"args: {v: a}", "args: {v: [a, b]}", []config.Change{{"v1alpha1", "args.v", config.Changed, "a", "[a, b]"}}},
	"empty and absent":      {"a: {}", "b: []", []config.Change{{"v1alpha1", "a", config.Removed, "{}", ""}, {"v1alpha1", "b", config.Added, "", "[]"}}},
	"a key with dots": {
		"sysctls: {vm.swappiness: 1}", "sysctls: {vm.swappiness: 2}",
		[]config.Change{{"v1alpha1", `sysctls["vm.swappiness"]`, config.Changed, "1", "2"}},
	},
	"versions": {"v: 1.10", "v: 1.1", []config.Change{{"v1alpha1", "v", config.Changed, "1.10", "1.1"}}},
	"escape sequences": {
		"a: \"\\e[2J\\nx\"", "a: \"\\u202e\"",
		[]config.Change{{"v1alpha1", "a", config.Changed, `"\x1b[2J\nx"`, `"\u202e"`}},
	},
}

// TestCompare: every difference is reported, with its place.
func TestCompare(t *testing.T) {
	t.Parallel()
	must.Each(t, compared, func(t *testing.T, c comparison) {
		found, wanted := parse(t, c.found), parse(t, c.wanted)
		must.Equal(t, "compare", c.want, config.Compare(found, wanted))
		must.Equal(t, "the same hash", false, found.Hash() == wanted.Hash())
	})
}

// TestSameButForRecast: what recast sets itself is left out.
func TestSameButForRecast(t *testing.T) {
	t.Parallel()
	const here = "machine: {type: worker, install: {image: a, disk: /dev/sda, wipe: true}, network: {hostname: x}, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}}\n---\nkind: HostnameConfig\nhostname: x\n"
	for text, want := range map[string]bool{
		here: true,
		"machine: {type: worker, install: {image: b, diskSelector: {serial: s}}, network: {hostname: y}, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.36.0}}\n---\nkind: HostnameConfig\nauto: stable\n": true,
		"machine: {type: worker, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}}\n---\nkind: HostnameConfig\n":                                                                                       true,
		"machine: {type: worker, kubelet: {image: r.example/kubelet:v1.35.0}}\n---\nkind: HostnameConfig\n":                                                                                                false,
		"machine: {type: worker, install: {extraKernelArgs: [a]}, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}}\n---\nkind: HostnameConfig\n":                                                      false,
		"machine: {type: controlplane, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}}\n---\nkind: HostnameConfig\n":                                                                                 false,
		"machine: {type: worker, kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}}\n":                                                                                                                  false,
	} {
		docs := parse(t, text)
		before := docs.Hash()
		got := config.SameButForRecast(parse(t, here), docs)
		must.Hold(t, got == want && docs.Hash() == before, "%t: %s", got, text)
	}
}

// TestOfKubernetesVersion: a roll leaves versions of Kubernetes alone, and not another repository.
func TestOfKubernetesVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}} → machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.36.0}}":              true,
		"machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0@sha256:aa}} → machine: {kubelet: {image: ghcr.io/siderolabs/kubelet}}":            true,
		"machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.35.0}} → machine: {kubelet: {}}":                                                       true,
		"machine: {kubelet: {}} → machine: {kubelet: {image: r.example:5000/kubelet:v1.35.0}}":                                                           false,
		"machine: {kubelet: {image: r.example:5000/kubelet:v1.35.0}} → machine: {kubelet: {image: r.example:5000/kubelet:v1.36.0}}":                      true,
		"cluster: {apiServer: {image: registry.k8s.io/kube-apiserver:v1.35.0}} → cluster: {apiServer: {image: k8s.gcr.io/kube-apiserver:v1.35.0}}":       false,
		"kind: KubeSchedulerConfig\nimage: registry.k8s.io/kube-scheduler:v1.35.0 → kind: KubeSchedulerConfig\nimage: registry.k8s.io/kube-scheduler:v1": true,
		"machine: {install: {image: ghcr.io/siderolabs/installer:v1.14.0}} → machine: {install: {image: ghcr.io/siderolabs/installer:v1.14.1}}":          false,
	} {
		found, wanted, _ := strings.Cut(text, " → ")
		changes := config.Compare(parse(t, found), parse(t, wanted))
		must.Hold(t, len(changes) == 1 && changes[0].OfKubernetesVersion() == want, "%s: %+v", text, changes)
	}
}

// TestSecrets: no secret is shown, neither at its own place nor where its value is repeated.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const found = `
machine: {token: abc.def, ca: {crt: c1, key: k1}, env: {FOO: old}, files: [{path: /a, content: hush}]}
cluster: {id: i1, secret: s1, secretboxEncryptionSecret: b1, serviceAccount: {key: a1}}
`
	const wanted = `
machine: {token: ghi.jkl, ca: {crt: c1, key: k2}, env: {FOO: new, http_proxy: "http://u:p@proxy:3128"}, files: [{path: /a, content: hush hush}], note: ghi.jkl,
  nodeTaints: {x: "see ghi.jkl.and.more"}, kubelet: {nodeLabels: {k1: yes}, registerWithTaints: [{key: dedicated}]}}
cluster: {id: i2, secret: s2, secretboxEncryptionSecret: b2, serviceAccount: {key: a2}, extraManifestHeaders: {Authorization: basic}}
---
kind: ExtensionServiceConfig
name: tailscale
environment: [TS_AUTHKEY=tskey-1, TS_ROUTES=10.0.0.0/8]
---
kind: NewerThanRecast
wifiPassword: pw
apiKey: ak
url: https://example.com/x?sig=1
pem: "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----"
`
	got := config.Compare(parse(t, found), parse(t, wanted))
	var lines []string
	for _, c := range got {
		lines = append(lines, strings.Join([]string{c.Document, c.Path, string(c.Kind), c.Found, c.Wanted}, "|"))
	}
	const r, part = config.Hidden, "[redacted]"
	want := []string{
		"ExtensionServiceConfig tailscale||added||",
		"ExtensionServiceConfig tailscale|environment|added||[TS_AUTHKEY=" + part + ", TS_ROUTES=" + part + "]",
		"ExtensionServiceConfig tailscale|name|added||tailscale",
		"NewerThanRecast||added||",
		"NewerThanRecast|apiKey|added||" + r,
		"NewerThanRecast|pem|added||" + r,
		"NewerThanRecast|url|added||https://example.com/x?" + part,
		"NewerThanRecast|wifiPassword|added||" + r,
		"v1alpha1|cluster.extraManifestHeaders.Authorization|added||" + r,
		"v1alpha1|cluster.id|changed|" + r + "|" + r,
		"v1alpha1|cluster.secret|changed|" + r + "|" + r,
		"v1alpha1|cluster.secretboxEncryptionSecret|changed|" + r + "|" + r,
		"v1alpha1|cluster.serviceAccount.key|changed|" + r + "|" + r,
		"v1alpha1|machine.ca.key|changed|" + r + "|" + r,
		"v1alpha1|machine.env.FOO|changed|" + r + "|" + r,
		"v1alpha1|machine.env.http_proxy|added||http://" + part + "@proxy:3128",
		"v1alpha1|machine.files[/a].content|changed|" + r + "|" + r,
		"v1alpha1|machine.kubelet.nodeLabels." + r + "|added||yes",
		"v1alpha1|machine.kubelet.registerWithTaints|added||[{key: dedicated}]",
		"v1alpha1|machine.nodeTaints.x|added||see ghi.jkl.and.more",
		"v1alpha1|machine.note|added||" + r,
		"v1alpha1|machine.token|changed|" + r + "|" + r,
	}
	must.Equal(t, "lines", want, lines)
}

// TestNoConfiguration: an unreadable configuration is an error that quotes nothing.
func TestNoConfiguration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"machine: {token: hush":   "not valid YAML",
		"a: 1\nhush: 1\nhush: 2":  "line 3: a key is given twice",
		"- hush":                  "line 1: a document is not a mapping",
		"a: &x {hush: *x}":        "line 1: an alias refers to itself",
		"{[hush]: 1}":             "line 1: a key is not a word",
		"machine:\n\thush: 1":     "not valid YAML",
		aliases(8):                "its aliases make it too large",
		"machine: {}\n--- hush\n": "line 2: a document is not a mapping",
		"machine: {token: hush}\n---\nkind: \"hush": "not valid YAML",
		"machine: {a: &a [*a, hush]}\n---\nkind: A": "line 1: an alias refers to itself",
		"a: *hush": "not valid YAML",
	} {
		_, err := config.Parse([]byte(text))
		must.Hold(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hush"),
			"%.60q: %v, want %s", text, err, want)
	}
}

// aliases is a small text that grows to 10^n values.
func aliases(n int) string {
	var text strings.Builder
	text.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range n {
		from, to := string(rune('0'+i)), string(rune('1'+i))
		text.WriteString("a" + to + ": &a" + to + " [" + strings.Repeat("*a"+from+",", 10) + "]\n")
	}
	return text.String()
}

// FuzzCompare: a configuration equals itself, equal configurations have equal hashes, and what is
// added in one direction is removed in the other.
func FuzzCompare(f *testing.F) {
	f.Add("machine: {token: abc.def, a: [1, 2], b: [{name: x}]}", "machine: {a: [2, 1], b: [{name: x, y: 1}]}\n---\nkind: A\nname: b")
	f.Add("a: &x {b: 1}\nc: {<<: *x}", "a: {}\n---\n")
	f.Add("a: [~, {b: ~}]", "a: [~, {}]")
	f.Add("a: 1\n\"[redacted]\": 1", "a: [redacted]\nb: \"[redacted]\"\nkind: \"[redacted]\"")
	f.Add("a: 0644\nb: 1.10", "a: 0o644\nb: \"1.10\"")
	f.Fuzz(func(t *testing.T, one, other string) {
		a, err := config.Parse([]byte(one))
		if err != nil {
			return // no configuration
		}
		must.Equal(t, "differs from itself", 0, len(config.Compare(a, a)))
		b, err := config.Parse([]byte(other))
		if err != nil {
			return // no configuration
		}
		there, back := config.Compare(a, b), config.Compare(b, a)
		if (len(there) == 0) != (a.Hash() == b.Hash()) || len(there) != len(back) {
			t.Fatalf("%d differences, %d the other way round, hashes %s and %s:\n%+v", len(there), len(back), a.Hash(), b.Hash(), there)
		}
		for _, c := range there {
			must.Hold(t, !slices.Contains([]string{c.Document, c.Path, c.Found, c.Wanted}, redact.Mark),
				"a journal would refuse %+v", c)
			text := c.Document + c.Path + c.Found + c.Wanted
			must.Hold(t, !strings.ContainsAny(text, "\n\r\x1b"), "%q is more than one line", text)
		}
	})
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	type row struct{ text, want string }
	must.Each(t, map[string]row{
		"by path":         {"cluster:\n  secret: abcdefghijkl # abcdefghijkl\n  name: c1\n", "cluster:\n    secret: '[redacted value]'\n    name: c1\n"},
		"by value":        {"cluster: {token: abc.defghijkl}\nother: {note: abc.defghijkl}\n", "cluster: {token: '[redacted value]'}\nother: {note: '[redacted value]'}\n"},
		"of a list":       {"machine:\n  env: [\"A=secretvalue\", \"B=2\"]\n", "machine:\n    env: ['A=[redacted]', 'B=[redacted]']\n"},
		"of a file":       {"machine:\n  files:\n    - content: |\n        a\n        b\n      path: /etc/x\n", "machine:\n    files:\n        - content: '[redacted value]'\n          path: /etc/x\n"},
		"many lines":      {"notes: |\n  one\n  two\n", "notes: |\n    one\n    two\n"},
		"order, numbers":  {"b: 0644\na: \"1\"\nc: ~\nd: \"\"\n", "b: 0644\na: \"1\"\nc: ~\nd: \"\"\n"},
		"documents":       {"# none\n---\na: 1\n---\nkind: X\nb: 2\n", "a: 1\n---\nkind: X\nb: 2\n"},
		"an anchor":       {"a: &x longsecretvalue\ncluster: {token: *x}\n", "a: &x '[redacted value]'\ncluster: {token: *x}\n"},
		"nothing":         {"", ""},
		"a key is secret": {"cluster: {token: abcdefghijkl}\nx: {abcdefghijkl: 1}\n", "cluster: {token: '[redacted value]'}\nx: {'[redacted value]': 1}\n"},
	}, func(t *testing.T, c row) {
		got, err := config.Redacted([]byte(c.text))
		must.Equal(t, "error and value", []any{nil, c.want}, []any{err, string(got)})
	})
	if _, err := config.Redacted([]byte("a: [secretvalue")); err == nil || strings.Contains(err.Error(), "secretvalue") {
		t.Errorf("err = %v", err)
	}
}

// TestRedactedOfGenerated: what Talos generates is shown without its secrets, and is the same but for those.
func TestRedactedOfGenerated(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		for _, kind := range kinds {
			b := bundle(t, version)
			text := encoded(t, generated(t, version, kind, b), encoder.CommentsAll)
			shown := must.Get(config.Redacted([]byte(text)))(t)
			for _, secret := range secretsOf(t, b) {
				must.Hold(t, !strings.Contains(string(shown), secret), "%s of %s shows %s", kind, version, secret)
			}
			for _, c := range config.Compare(parse(t, text), parse(t, string(shown))) {
				must.Hold(t, strings.Contains(c.Found+c.Wanted, "[redacted"), "%s of %s: %+v", kind, version, c)
			}
		}
	}
}

func bundle(t *testing.T, version string) *secrets.Bundle {
	t.Helper()
	contract := must.Get(talosconfig.ParseContractFromVersion(version))(t)
	b := must.Get(secrets.NewBundle(secrets.NewClock(), contract, secrets.WithECDSAServiceAccountKey()))(t)
	return b
}

// generated is the configuration that talosctl gen config makes of the secrets for that version.
func generated(t *testing.T, version string, kind machine.Type, b *secrets.Bundle) talosconfig.Provider {
	t.Helper()
	contract := must.Get(talosconfig.ParseContractFromVersion(version))(t)
	in, err := generate.NewInput("lab", "https://127.42.7.10:6443", "1.35.4", generate.WithVersionContract(contract), generate.WithSecretsBundle(b),
		generate.WithInstallDisk("/dev/vda"), generate.WithInstallImage("ghcr.io/siderolabs/installer:"+version), generate.WithClusterDiscovery(true))
	must.Do(t, err)
	cfg := must.Get(in.Config(kind))(t)
	return cfg
}

func encoded(t *testing.T, cfg talosconfig.Provider, comments encoder.CommentsFlags) string {
	t.Helper()
	b := must.Get(cfg.EncodeBytes(encoder.WithComments(comments)))(t)
	return string(b)
}

var versions = []string{"v1.12", "v1.13", "v1.14"}

var kinds = []machine.Type{machine.TypeControlPlane, machine.TypeWorker}

// TestGenerated: a configuration that Talos generates equals itself without comments, and its
// differences from the next version's are reported.
func TestGenerated(t *testing.T) {
	t.Parallel()
	b := bundle(t, "v1.14")
	for _, kind := range kinds {
		for i, version := range versions {
			plain := parse(t, encoded(t, generated(t, version, kind, b), encoder.CommentsDisabled))
			commented := parse(t, encoded(t, generated(t, version, kind, b), encoder.CommentsAll))
			if got := config.Compare(plain, commented); len(got) > 0 || plain.Hash() != commented.Hash() {
				t.Errorf("%s of %s: comments make a difference: %+v", kind, version, got)
			}
			if i == 0 {
				continue
			}
			before := parse(t, encoded(t, generated(t, versions[i-1], kind, b), encoder.CommentsDisabled))
			if got := config.Compare(before, plain); len(got) == 0 || before.Hash() == plain.Hash() {
				t.Errorf("%s: nothing differs between %s and %s", kind, versions[i-1], version)
			}
		}
	}
}

// secretsOf are all secret texts in a bundle: everything but certificates and times.
func secretsOf(t *testing.T, b *secrets.Bundle) (out []string) {
	t.Helper()
	text := must.Get(json.Marshal(b))(t)
	for _, v := range leaves(t, string(text)) {
		if len(v) < 8 || strings.HasPrefix(v, "20") {
			continue
		}
		out = append(out, v)
		if plain, err := base64.StdEncoding.DecodeString(v); err == nil {
			for line := range strings.Lines(string(plain)) {
				if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "-----") {
					out = append(out, line)
				}
			}
		}
	}
	must.Be(t, len(out) >= 10, "%d secrets in a bundle", len(out))
	return out
}

// TestNoSecretIsShown: the configurations of two clusters differ in every field, and what is shown has no secret of
// either: unchanged, with one side missing, and with a secret copied to an unexpected place.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		one, other := bundle(t, version), bundle(t, version)
		all := append(secretsOf(t, one), secretsOf(t, other)...)
		for _, kind := range kinds {
			a := encoded(t, generated(t, version, kind, one), encoder.CommentsDisabled)
			b := encoded(t, generated(t, version, kind, other), encoder.CommentsDisabled)
			copied := b + fmt.Sprintf("\n---\nkind: NewerThanRecast\nname: %[1]s\nsome: {%[1]s: 1, text: \"at %[1]s, or\", list: [%[2]s, {name: %[3]s}]}\n",
				other.TrustdInfo.Token, other.Secrets.BootstrapToken, other.Cluster.Secret)
			for name, c := range map[string][2]string{"changed": {a, b}, "added": {"", b}, "removed": {a, ""}, "copied": {a, copied}} {
				changes := config.Compare(parse(t, c[0]), parse(t, c[1]))
				shown, err := json.Marshal(changes)
				must.Be(t, err == nil && len(changes) >= 5, "%s: %d changes, %v", name, len(changes), err)
				for _, secret := range all {
					must.Hold(t, !bytes.Contains(shown, []byte(secret)),
						"%s, %s, %s: %.12s… is shown in\n%s", version, kind, name, secret, shown)
				}
			}
		}
	}
}

// everySecret has a value in each field that Talos treats as secret (RedactSecrets, and Redact of its documents).
const everySecret = `
version: v1alpha1
machine:
  type: controlplane
  token: SEEN-1.token
  ca: {crt: Y2VydA==, key: U0VFTi0y}
  certSANs: []
  network:
    interfaces:
      - interface: wg0
        wireguard: {privateKey: SEEN-3, peers: [{publicKey: pub}]}
        vip: {ip: 10.0.0.1, hcloud: {apiToken: SEEN-4}, equinixMetal: {apiToken: SEEN-5}}
        vlans: [{vlanId: 5, vip: {ip: 10.0.0.2, hcloud: {apiToken: SEEN-6}}}]
  registries:
    config:
      registry.example:
        auth: {username: user, password: SEEN-7, auth: SEEN-8, identityToken: SEEN-9}
        tls: {clientIdentity: {crt: Y2VydA==, key: U0VFTi0xMA==}}
  systemDiskEncryption:
    state: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-11}}]}
    ephemeral: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-12}}]}
cluster:
  controlPlane: {endpoint: "https://10.0.0.1:6443"}
  secret: SEEN-13
  token: SEEN-14.token
  aescbcEncryptionSecret: SEEN-15
  secretboxEncryptionSecret: SEEN-16
  ca: {crt: Y2VydA==, key: U0VFTi0xNw==}
  aggregatorCA: {crt: Y2VydA==, key: U0VFTi0xOA==}
  serviceAccount: {key: U0VFTi0xOQ==}
  etcd: {ca: {crt: Y2VydA==, key: U0VFTi0yMA==}}
--- {apiVersion: v1alpha1, kind: WireguardConfig, name: wg1, privateKey: SEEN-21,
  peers: [{publicKey: pub, presharedKey: SEEN-22, allowedIPs: [10.0.0.0/8]}]}
--- {apiVersion: v1alpha1, kind: HCloudVIPConfig, name: 10.0.0.3, link: eth0, apiToken: SEEN-23}
--- {apiVersion: v1alpha1, kind: RegistryAuthConfig, name: registry.example, username: user,
  password: SEEN-24, auth: SEEN-25, identityToken: SEEN-26}
--- {apiVersion: v1alpha1, kind: RegistryTLSConfig, name: registry.example, clientIdentity: {cert: cert, key: SEEN-27}}
--- {apiVersion: v1alpha1, kind: UserVolumeConfig, name: data, encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-28}}]},
  }
--- {apiVersion: v1alpha1, kind: RawVolumeConfig, name: raw, encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-29}}]},
  }
--- {apiVersion: v1alpha1, kind: SwapVolumeConfig, name: swap, encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-30}}]},
  }
--- {apiVersion: v1alpha1, kind: VolumeConfig, name: EPHEMERAL, encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-31}}]},
  }
--- {apiVersion: v1alpha1, kind: SideroLinkConfig, apiUrl: grpc://siderolink.example:443?jointoken=SEEN-32, uniqueToken: SEEN-33,
  }
--- {apiVersion: v1alpha1, kind: DiscoveryIdentityConfig, clusterID: SEEN-34, clusterSecret: SEEN-35}
--- {apiVersion: v1alpha1, kind: KubeServiceAccountConfig, issuer: {privateKey: SEEN-36, issuerURL: "https://10.0.0.1:6443"},
  }
--- {apiVersion: v1alpha1, kind: KubeAPIServerCAConfig, issuingCA: {cert: cert, key: SEEN-37}}
--- {apiVersion: v1alpha1, kind: KubeAggregatorCAConfig, issuingCA: {cert: cert, key: SEEN-38}}
---
apiVersion: v1alpha1
kind: KubeEtcdEncryptionConfig
config:
  {apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration,
  resources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: key1, secret: SEEN-39}]}}, {identity: {}}]}]}
`

// TestWhatTalosRedacts: each field that Talos' own RedactSecrets removes is hidden here, too.
func TestWhatTalosRedacts(t *testing.T) {
	t.Parallel()
	cfg := must.Get(configloader.NewFromBytes([]byte(everySecret)))(t)
	const mark = "TAKEN-OUT-BY-TALOS"
	before, after := encoded(t, cfg, encoder.CommentsDisabled), encoded(t, cfg.RedactSecrets(mark), encoder.CommentsDisabled)
	texts := leaves(t, before)
	redacted := leaves(t, after)
	taken := 0
	var secret []string
	for path, text := range texts {
		if redacted[path] != text {
			taken++
			secret = append(secret, text)
		}
	}
	must.Hold(t, taken >= 37, "Talos takes %d fields out: the configuration has lost some", taken)
	shown := must.Get(json.Marshal(append(config.Compare(parse(t, ""), parse(t, before)), config.Compare(parse(t, before), parse(t, after))...)))(t)
	for _, text := range append(secret, "SEEN") {
		must.Hold(t, !bytes.Contains(shown, []byte(text)), "%s is shown in\n%s", text, shown)
	}
	must.Contain(t, "what is no secret", string(shown), "registry.example", "EPHEMERAL", "key1", "10.0.0.0/8")
}

// leaves are the scalars of a configuration, by document and path.
func leaves(t *testing.T, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, child := range v {
				walk(path+"."+key, child)
			}
		case []any:
			for i, child := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), child)
			}
		default:
			out[path] = fmt.Sprint(v)
		}
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	for i := 0; ; i++ {
		var doc any
		if err := d.Decode(&doc); err != nil {
			return out
		}
		walk(fmt.Sprint(i), doc)
	}
}
