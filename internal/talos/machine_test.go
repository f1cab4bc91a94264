package talos

import (
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestEncryption(t *testing.T) {
	t.Parallel()
	const legacy = "machine:\n  systemDiskEncryption:\n    state: {provider: luks2, keys: [{slot: 0, nodeID: {}}, {slot: 1, static: {passphrase: s3cret}}]}\n    ephemeral: {provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://kms'}}]}\n"
	doc := func(kind, name, keys string) string {
		return "---\napiVersion: v1alpha1\nkind: " + kind + "\nname: " + name + "\nencryption:\n  provider: luks2\n  keys:\n" + keys
	}
	cases := map[string]struct {
		config string
		want   []cluster.Encryption
	}{
		"none":                 {"machine: {type: worker}\n---\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {grow: true}\n", nil},
		"no encryption at all": {"machine: {systemDiskEncryption: {state: {}, ephemeral: null}}\n---\nkind: VolumeConfig\nname: EPHEMERAL\nencryption: {}\n", nil},
		"legacy": {legacy, []cluster.Encryption{
			{Volume: "EPHEMERAL", Keys: []string{"kms"}}, {Volume: "STATE", Keys: []string{"nodeID", "static"}},
		}},
		"documents": {
			"machine: {type: worker}\n" + doc("VolumeConfig", "EPHEMERAL", "  - slot: 0\n    tpm: {}\n    lockToState: true\n  - slot: 1\n    static: {passphrase: a}\n") +
				doc("UserVolumeConfig", "data", "  - slot: 0\n    nodeID: {}\n    lockToState: false\n") +
				doc("RawVolumeConfig", "block", "  - {slot: 0, kms: {endpoint: a}, lockToState: null}\n") +
				doc("SwapVolumeConfig", "swap", "  - {slot: 0, static: {passphrase: a}, nodeID: null}\n"),
			[]cluster.Encryption{
				{Volume: "EPHEMERAL", Keys: []string{"static", "tpm"}, LockToState: true},
				{Volume: "r-block", Keys: []string{"kms"}},
				{Volume: "s-swap", Keys: []string{"static"}},
				{Volume: "u-data", Keys: []string{"nodeID"}},
			},
		},
		"written once, used twice": {
			"machine:\n  systemDiskEncryption:\n    state: &e {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n    ephemeral: *e\n",
			[]cluster.Encryption{{Volume: "EPHEMERAL", Keys: []string{"nodeID"}}, {Volume: "STATE", Keys: []string{"nodeID"}}},
		},
		"of a newer Talos": {
			doc("TapeVolumeConfig", "x", "  - slot: 0\n    pin: {}\n    lockToState: true\n"),
			[]cluster.Encryption{{Volume: "TapeVolumeConfig/x", Keys: []string{"pin"}, LockToState: true}},
		},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, must.Get(encryptionOf(c.config))(t))
	}
	for name, config := range map[string]string{"no YAML": "a: [s3cret", "not as Talos has it": "kind: VolumeConfig\nencryption: {keys: s3cret}\n"} {
		if _, err := encryptionOf(config); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestConfigArgs(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		cmdline string
		want    []string
	}{
		"none":            {"talos.platform=nocloud console=ttyS0 talos.configuration=x xtalos.config=y talos.config talos.config= talos.config=none", nil},
		"a server":        {"talos.config=https://user:pass@seed.example:8080/c?uuid=${uuid}&token=s3cret quiet", []string{"talos.config=https://seed.example:8080"}},
		"an ISO":          {"talos.config=metal-iso", []string{"talos.config="}},
		"inline, early":   {"talos.config.inline=KLUv/QBYczNjcmV0 talos.config.inline=bW9yZQ talos.config.early=c2VjcmV0", []string{"talos.config.inline=", "talos.config.early="}},
		"SideroLink":      {"siderolink.api=grpc://omni.example:8090?jointoken=s3cret", []string{"siderolink.api=grpc://omni.example:8090"}},
		"in quotes":       {`"talos.config=http://seed.example/s3cret"`, []string{"talos.config=http://seed.example"}},
		"no URL":          {"talos.config=http://[s3cret", []string{"talos.config="}},
		"the same server": {"talos.config=http://a.example/1 talos.config=http://a.example/2", []string{"talos.config=http://a.example"}},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, configArgs(c.cmdline))
	}
}

// variable is an EFI variable with that text.
func variable(text string) []byte {
	b := []byte{7, 0, 0, 0}
	for _, unit := range utf16.Encode([]rune(text + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}

func TestLoaderEntry(t *testing.T) {
	t.Parallel()
	entry := variable("Talos-v1.14.1~1.efi")
	cases := map[string]struct {
		variable []byte
		want     string
	}{
		"an entry":          {entry, "talos-v1.14.1~1.efi"},
		"more behind it":    {append(variable("a.efi"), 'x', 0, 'y'), "a.efi"},
		"beyond one unit":   {variable("A😀.efi"), "a😀.efi"},
		"empty":             {variable(""), ""},
		"nothing":           {nil, ""},
		"no attributes":     {entry[:3], ""},
		"only attributes":   {entry[:4], ""},
		"cut off":           {entry[:len(entry)-2], ""},
		"half a unit":       {entry[:len(entry)-1], ""},
		"half a surrogate":  {[]byte{7, 0, 0, 0, 'a', 0, 0x3d, 0xd8, 0, 0}, ""},
		"swapped, no UTF16": {[]byte{7, 0, 0, 0, 0xff, 0xdf, 0, 0}, ""},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, loaderEntry(c.variable))
	}
}

// Every text is read back, and other input does no harm.
func FuzzLoaderEntry(f *testing.F) {
	f.Add("Talos-v1.14.1~1.efi", []byte{7, 0, 0, 0, 'a'})
	f.Fuzz(func(t *testing.T, text string, raw []byte) {
		loaderEntry(raw)
		text = strings.ToValidUTF8(text, "")
		if strings.ContainsAny(text, "\x00\ufffd") {
			return
		}
		must.Equal(t, text, strings.ToLower(text), loaderEntry(variable(text)))
	})
}

func encryptionOf(config string) ([]cluster.Encryption, error) {
	docs, err := parseDocuments([]byte(config))
	if err != nil {
		return nil, err
	}
	return encryption(docs)
}

// TestSecureBoot: a machine that does not report it does not count as one without.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*bool{"on": new(true), "off": new(false), "it does not say": nil} {
		s := machineWith(t)
		if want != nil {
			r := runtime.NewSecurityStateSpec(runtime.NamespaceName)
			r.TypedSpec().SecureBoot = *want
			s = machineWith(t, r)
		}
		var got cluster.Machine
		must.Do(t, readSecurity(t.Context(), s, &got))
		must.Equal(t, name, cluster.RunningSystem{SecureBoot: want}, got.RunningSystem)
	}
}

// machineWith is a connection to a machine with those resources.
func machineWith(t *testing.T, rs ...resource.Resource) session {
	t.Helper()
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	for _, r := range rs {
		must.Do(t, st.Create(t.Context(), r))
	}
	return session{Client: &client.Client{COSI: st}, blank: true}
}

func TestClaimLayersInOrder(t *testing.T) {
	t.Parallel()
	var rs []resource.Resource
	var want []observe.ExtensionLayer
	for i := range 13 {
		id := strconv.Itoa(i)
		if i == 12 {
			id = "modules.dep"
		}
		r := runtime.NewExtensionStatus(runtime.NamespaceName, id)
		r.TypedSpec().Metadata.Name, r.TypedSpec().Metadata.ExtraInfo = "e"+id, "info"
		rs, want = append(rs, r), append(want, observe.ExtensionLayer{Name: "e" + id, ExtraInfo: "info"})
	}
	var got observe.Claims
	must.Do(t, claimLayers(t.Context(), machineWith(t, rs...), &got))
	must.Equal(t, "layers", want, got.Layers)
}

func TestClaimFactory(t *testing.T) {
	t.Parallel()
	r := runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID)
	r.TypedSpec().SchematicID, r.TypedSpec().Flavor, r.TypedSpec().APIURL = "cafe", "Image Factory", "https://factory.example"
	var got, none observe.Claims
	must.Do(t, claimFactory(t.Context(), machineWith(t, r), &got))
	want := &observe.FactoryClaim{SchematicID: "cafe", Flavor: "Image Factory", URL: "https://factory.example"}
	must.Equal(t, "factory", want, got.Factory)
	if err := claimFactory(t.Context(), machineWith(t), &none); none.Factory != nil || err != nil {
		t.Errorf("none: %+v, %v", none.Factory, err)
	}
}

// TestClaimCmdline: of a command line only recast's own argument is kept.
func TestClaimCmdline(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"talos.platform=metal siderolink.api=grpc://x?jointoken=s3cret recast.lock=sha256-a quiet": {"sha256-a"},
		`"recast.lock=sha256-a" recast.lock=sha256-b xrecast.lock=sha256-c`:                        {"sha256-a", "sha256-b"},
		"talos.platform=metal": nil,
	} {
		r := runtime.NewKernelCmdline()
		r.TypedSpec().Cmdline = line
		var got observe.Claims
		must.Do(t, claimCmdline(t.Context(), machineWith(t, r), &got))
		must.Equal(t, line, observe.BootClaims{Locks: want, Cmdline: true}, got.Booted)
	}
}
