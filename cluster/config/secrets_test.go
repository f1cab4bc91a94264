package config_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
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
	"github.com/recast-sh/recast/internal/sim/must"
)

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
func secretsOf(t *testing.T, b *secrets.Bundle) []string {
	t.Helper()
	text := must.Get(json.Marshal(b))(t)
	var tree any
	must.Do(t, json.Unmarshal(text, &tree))
	var out []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		case string:
			if len(v) < 8 || strings.HasPrefix(v, "20") {
				return
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
	}
	walk(tree)
	if len(out) < 10 {
		t.Fatalf("%d secrets in a bundle", len(out))
	}
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
				if err != nil || len(changes) < 5 {
					t.Fatalf("%s: %d changes, %v", name, len(changes), err)
				}
				for _, secret := range all {
					if bytes.Contains(shown, []byte(secret)) {
						t.Errorf("%s, %s, %s: %.12s… is shown in\n%s", version, kind, name, secret, shown)
					}
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
---
apiVersion: v1alpha1
kind: WireguardConfig
name: wg1
privateKey: SEEN-21
peers: [{publicKey: pub, presharedKey: SEEN-22, allowedIPs: [10.0.0.0/8]}]
---
apiVersion: v1alpha1
kind: HCloudVIPConfig
name: 10.0.0.3
link: eth0
apiToken: SEEN-23
---
apiVersion: v1alpha1
kind: RegistryAuthConfig
name: registry.example
username: user
password: SEEN-24
auth: SEEN-25
identityToken: SEEN-26
---
apiVersion: v1alpha1
kind: RegistryTLSConfig
name: registry.example
clientIdentity: {cert: cert, key: SEEN-27}
---
apiVersion: v1alpha1
kind: UserVolumeConfig
name: data
encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-28}}]}
---
apiVersion: v1alpha1
kind: RawVolumeConfig
name: raw
encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-29}}]}
---
apiVersion: v1alpha1
kind: SwapVolumeConfig
name: swap
encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-30}}]}
---
apiVersion: v1alpha1
kind: VolumeConfig
name: EPHEMERAL
encryption: {provider: luks2, keys: [{slot: 0, static: {passphrase: SEEN-31}}]}
---
apiVersion: v1alpha1
kind: SideroLinkConfig
apiUrl: grpc://siderolink.example:443?jointoken=SEEN-32
uniqueToken: SEEN-33
---
apiVersion: v1alpha1
kind: DiscoveryIdentityConfig
clusterID: SEEN-34
clusterSecret: SEEN-35
---
apiVersion: v1alpha1
kind: KubeServiceAccountConfig
issuer: {privateKey: SEEN-36, issuerURL: "https://10.0.0.1:6443"}
---
apiVersion: v1alpha1
kind: KubeAPIServerCAConfig
issuingCA: {cert: cert, key: SEEN-37}
---
apiVersion: v1alpha1
kind: KubeAggregatorCAConfig
issuingCA: {cert: cert, key: SEEN-38}
---
apiVersion: v1alpha1
kind: KubeEtcdEncryptionConfig
config:
  apiVersion: apiserver.config.k8s.io/v1
  kind: EncryptionConfiguration
  resources:
    - resources: [secrets]
      providers:
        - secretbox: {keys: [{name: key1, secret: SEEN-39}]}
        - identity: {}
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
	if taken < 37 {
		t.Errorf("Talos takes %d fields out: the configuration has lost some", taken)
	}
	shown, err := json.Marshal(append(config.Compare(parse(t, ""), parse(t, before)), config.Compare(parse(t, before), parse(t, after))...))
	must.Do(t, err)
	for _, text := range append(secret, "SEEN") {
		if bytes.Contains(shown, []byte(text)) {
			t.Errorf("%s is shown in\n%s", text, shown)
		}
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
