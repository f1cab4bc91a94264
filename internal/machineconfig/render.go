package machineconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/gendata"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// Render says from which secrets and patches configurations are made, as talosctl gen config makes them. The patches
// are applied in this order.
type Render struct {
	Cluster       string
	Endpoint      string // of Kubernetes: "https://10.0.0.1:6443"
	Secrets       string // path of a file of talosctl gen secrets
	Talos         string // release that determines their defaults and documents: "v1.14"
	Kubernetes    string // version: "v1.35.4"
	Installer     string // image; recast sets its own image, and the disk, before it applies a configuration
	ControlPlanes []string
	SANs          []string // further names and addresses of the Kubernetes API
	DNSDomain     string   // "": cluster.local
	All           []string // paths of the patches of every node; below: of a role, and of single nodes
	OfControls    []string
	OfWorkers     []string
	OfNode        map[string][]string
}

// rendered makes a node's configuration. Secrets and patches are read once.
func (s *Source) rendered(ctx context.Context, node string) (cluster.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.o.Render
	if s.input == nil {
		input, err := s.newInput(ctx, *r)
		if err != nil {
			return nil, err
		}
		s.input = input
	}
	role, patches := machine.TypeWorker, r.OfWorkers
	if slices.Contains(r.ControlPlanes, node) {
		role, patches = machine.TypeControlPlane, r.OfControls
	}
	cfg, err := s.input.Config(role)
	if err != nil {
		return nil, fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	for _, path := range slices.Concat(r.All, patches, r.OfNode[node]) {
		if cfg, err = s.patched(ctx, cfg, path); err != nil {
			return nil, err
		}
	}
	text, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	return text, nil
}

func (s *Source) newInput(ctx context.Context, r Render) (*generate.Input, error) {
	text, err := s.read(ctx, r.Secrets)
	if err != nil {
		return nil, err
	}
	contract, err := config.ParseContractFromVersion(r.Talos)
	if err != nil {
		return nil, fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	bundle := &secrets.Bundle{Clock: secrets.NewClock()}
	if err := yaml.Unmarshal(text, bundle); err != nil || bundle.Cluster == nil || bundle.Secrets == nil || bundle.Certs == nil {
		return nil, fault.WithHint(fault.MachineConfig.Configf("%s has no secrets of a cluster", r.Secrets), // the parser's error may quote the secrets
			"talosctl gen secrets makes such a file; talosctl gen secrets --from-controlplane-config makes one from the configuration of a control plane that runs")
	}
	if err := bundle.Validate(contract); err != nil {
		return nil, fault.MachineConfig.Configf("%s: %w", r.Secrets, err)
	}
	options := []generate.Option{
		generate.WithVersionContract(contract), generate.WithDNSDomain(cmp.Or(r.DNSDomain, constants.DefaultDNSDomain)), generate.WithSecretsBundle(bundle), generate.WithClusterDiscovery(true),
		generate.WithAdditionalSubjectAltNames(r.SANs), generate.WithInstallImage(r.Installer), generate.WithInstallDisk("/dev/sda"),
	}
	input, err := generate.NewInput(r.Cluster, r.Endpoint, strings.TrimPrefix(r.Kubernetes, "v"), options...)
	if err != nil {
		return nil, fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	return input, nil
}

// patched applies a patch: strategic merge or JSON.
func (s *Source) patched(ctx context.Context, cfg config.Provider, path string) (config.Provider, error) {
	patch, known := s.patches[path]
	if !known {
		text, err := s.read(ctx, path)
		if err != nil {
			return nil, err
		}
		if patch, err = configpatcher.LoadPatch(text); err != nil {
			return nil, fault.WithHint(fault.MachineConfig.Configf("%s is no patch of a machine configuration: %s", path, withoutValues(err, text)),
				"a patch is a part of a configuration (strategic merge), or a list of JSON patch operations")
		}
		if s.patches == nil {
			s.patches = map[string]configpatcher.Patch{}
		}
		s.patches[path] = patch
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(cfg), []configpatcher.Patch{patch})
	if err == nil {
		cfg, err = out.Config()
	}
	if err != nil {
		return nil, fault.WithHint(fault.MachineConfig.Configf("%s can't be applied: %s", path, withoutValues(err, nil)),
			"a list of JSON patch operations works only on a configuration of one document, as talosctl makes for releases before v1.12: write it as a part of a configuration instead")
	}
	return cfg, nil
}

var (
	// quoted matches what a parser quotes of the file that it rejects.
	quoted = regexp.MustCompile("`[^`]*`")
	// unknownKeys matches the fields that Talos' decoder does not know; the decoder prints them with their values.
	unknownKeys = regexp.MustCompile(`(?s)(unknown keys found during decoding:\n)(.*)`)
	keyOnly     = regexp.MustCompile(`(?m)^(\s*(?:- )?[\w./-]+:).*$|^.*$`)
)

// withoutValues returns a parser's error without values of the file, which may be secret.
func withoutValues(err error, text []byte) string {
	said := quoted.ReplaceAllString(redact.New(redact.YAML(text)).Text(err.Error()), redact.Mark)
	return unknownKeys.ReplaceAllStringFunc(said, func(listing string) string {
		head, fields, _ := strings.Cut(listing, "\n")
		return head + "\n" + keyOnly.ReplaceAllString(fields, "$1")
	})
}

// read reads a file, and decrypts an encrypted file.
func (s *Source) read(ctx context.Context, path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.o.Place, err)
	}
	return s.decrypted(ctx, file{text, filepath.Clean(path)})
}

// NewestTalos returns the newest version of Talos whose configurations this recast knows.
func NewestTalos() string { return strings.TrimSpace(gendata.VersionTag) }

// oldestTalos is the first release whose nodes recast rolls (see internal/talos).
var oldestTalos = config.TalosVersion1_12

// KubernetesFor returns the version of Kubernetes for a new cluster with that Talos: the wanted version, which Talos
// has to support, or else the newest version that this recast knows; "" if Talos does not support the newest.
func KubernetesFor(talos, wanted string) (string, error) {
	target, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err == nil {
		err = target.UpgradeableFrom(target) // the tables have this version
	}
	release, errRelease := config.ParseContractFromVersion(talos)
	if err != nil || errRelease != nil || oldestTalos.Greater(release) {
		return "", fault.WithHint(fault.Configf("Talos %s is not a version of which this recast can make a cluster", talos),
			"it takes v1.12 and later, up to the release of %s", NewestTalos())
	}
	version := strings.TrimPrefix(wanted, "v")
	if wanted == "" {
		version = constants.DefaultKubernetesVersion
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(version)
	if err == nil {
		err = kubernetes.SupportedWith(target)
	}
	switch {
	case err != nil && wanted == "":
		return "", nil
	case err != nil:
		return "", fault.Configf("Kubernetes %s with Talos %s: %w", wanted, talos, err)
	}
	return "v" + version, nil
}

// NewSecrets makes the secrets of a new cluster, as talosctl gen secrets does for that version of Talos.
func NewSecrets(talos string) (cluster.Secret, error) {
	contract, err := config.ParseContractFromVersion(talos)
	if err != nil {
		return nil, fault.Configf("make the secrets of the cluster: %w", err)
	}
	var text []byte
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract)
	if err == nil {
		text, err = yaml.Marshal(bundle)
	}
	if err != nil {
		return nil, fmt.Errorf("make the secrets of the cluster: %w", err)
	}
	return text, nil
}
