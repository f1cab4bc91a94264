// Package machineconfig reads machine configurations from where the user keeps them: from the files of a directory or
// from the output of a program. It can also make configurations from secrets and patches, as talosctl gen config
// does. It decrypts what SOPS or age encrypted. Its type is [Source].
package machineconfig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

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
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

// Options say where configurations are. One of Dir, Command and Render is set.
type Options struct {
	Place   string                   // of the setting, for messages: "recast.yaml:6:3: talos.machineConfigs"
	File    func(node string) string // path of a node's file within the directory
	Dir     string                   // of the files
	Command []string                 // program that writes the files to the directory "{out}", and its arguments
	Render  *Render
	Base    string            // working directory of programs
	Env     []string          // this process's environment
	Pass    []string          // names of further variables for programs
	Note    func(line string) // receives the name of a program that takes longer than a second; may be nil
}

// Source reads configurations. It may be used by several goroutines.
type Source struct {
	o Options

	mu      sync.Mutex
	input   *generate.Input                // from which configurations are rendered
	patches map[string]configpatcher.Patch // by path
	written map[string][]byte              // by the program, by path
	failed  error                          // of the program
}

// New returns a Source. It fails if the directory can't be read.
func New(o Options) (*Source, error) {
	s := &Source{o: o}
	if o.Command != nil || o.Render != nil {
		return s, nil
	}
	return s, s.checkDir()
}

// checkDir distinguishes a missing file of a node from a missing directory: it returns an error if the directory
// can't be read.
func (s *Source) checkDir() error {
	if _, err := os.ReadDir(s.o.Dir); err != nil {
		return fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	return nil
}

// Config returns the configuration of a node, decrypted; false if there is none. Each call reads a file again; a
// program runs once.
func (s *Source) Config(ctx context.Context, node string) (text cluster.Secret, found bool, err error) {
	if s.o.Render != nil {
		text, err = s.rendered(ctx, node)
		return text, err == nil, err
	}
	read := s.file
	if s.o.Command != nil {
		read = s.output
	}
	file, err := read(ctx, s.o.File(node))
	if err != nil {
		return nil, false, fmt.Errorf("machine configuration of %s: %w", node, err)
	}
	if file == nil {
		return nil, false, nil
	}
	text, err = s.decrypted(ctx, *file)
	return text, err == nil, err
}

// file is a node's configuration as the user keeps it.
type file struct {
	text []byte
	name string // in messages
}

// file returns a file of the directory; nil if there is none.
func (s *Source) file(_ context.Context, name string) (*file, error) {
	path := filepath.Join(s.o.Dir, name)
	text, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return &file{text, path}, err
	}
	if _, there := os.Lstat(path); there == nil {
		return nil, err // a link that leads nowhere
	}
	return nil, s.checkDir()
}

// output returns a file that the program has written; nil if the program has written none for the node.
func (s *Source) output(ctx context.Context, name string) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil && s.failed == nil {
		written, err := s.run(ctx)
		if ctx.Err() != nil {
			return nil, err // the next caller may have more time
		}
		s.written, s.failed = written, err
	}
	text, ok := s.written[filepath.Clean(name)]
	if s.failed != nil || !ok {
		return nil, s.failed
	}
	return &file{text, name + " of " + s.o.Command[0]}, nil
}

const (
	runTimeout = 5 * time.Minute // for a program that writes all files
	longRun    = time.Second     // after which the user is told of a running program
	maxOutput  = 64 << 20        // bytes of all files
)

// run has the program write its files into a new directory, reads the files, and removes the directory.
func (s *Source) run(ctx context.Context) (files map[string][]byte, err error) {
	dir, err := newOutputDir()
	if err != nil {
		return nil, fault.MachineConfig.Of(fmt.Errorf("%s: %w", s.o.Place, err))
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	args := cluster.Each(s.o.Command, func(arg string) string { return strings.ReplaceAll(arg, "{out}", dir.path) })
	ended := s.o.program(ctx, command.Program{Args: args}, func() (secrets []string) {
		files, err = readAll(dir.path)
		for _, text := range files {
			secrets = append(secrets, redact.YAML(text)...)
		}
		return secrets
	})
	switch {
	case ended != nil:
		return nil, s.explained(args[0], ended)
	case err != nil:
		return nil, fault.MachineConfig.Refusedf("%s: the output of %s: %w", s.o.Place, args[0], err)
	case len(files) == 0:
		return nil, fault.WithHint(fault.MachineConfig.Configf("%s: %s wrote no file to {out}", s.o.Place, args[0]),
			"{out} in command has to be where the program writes its files, such as [talhelper, genconfig, --out-dir, \"{out}\"]")
	}
	return files, nil
}

// program runs a program to its end. An error has the program's last lines, without what looks like a secret. It also
// lacks the secrets that the program has read or written, which secrets returns afterwards.
func (o Options) program(ctx context.Context, p command.Program, secrets func() []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runTimeout, fmt.Errorf("it was stopped because it had not ended after %s", runTimeout))
	defer cancel()
	if o.Note != nil {
		telling := time.AfterFunc(longRun, func() { o.Note("machine configurations: waiting for " + p.Args[0]) })
		defer telling.Stop()
	}
	said := &command.Lines{}
	p.Dir, p.Env = o.Base, command.Environ(o.Env, slices.Concat(keyVariables, o.Pass))
	err := p.Run(ctx, said)
	if last := said.LastCleaned(redact.New(secrets()).Text); err != nil && last != "" {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}

func (s *Source) explained(program string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return fault.WithHint(fault.MachineConfig.Configf("%s: run %s: %w", s.o.Place, program, err),
			"command has to name a program that can be run here: by its name in PATH, or by its path, which starts at recast.yaml")
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("%s: %s: %w", s.o.Place, program, err),
		"run it by hand to see all that it says; it gets only some of the environment's variables: env in talos.machineConfigs names more")
}

// readAll reads all files below a directory, by their paths in it.
func readAll(dir string) (files map[string][]byte, err error) {
	root, err := os.OpenRoot(dir) // no symbolic link leads out of it
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	files, total := map[string][]byte{}, int64(0)
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := root.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		if total += info.Size(); total > maxOutput {
			return fmt.Errorf("it has more than %d MiB", maxOutput>>20)
		}
		text, err := root.ReadFile(path)
		files[filepath.FromSlash(path)] = text
		return err
	})
	return files, err
}

// outputDir is a directory for plaintext. Only its user can read the directory. It is in memory if the system has a
// file system there, and it is locked while its process lives.
type outputDir struct {
	path string
	lock *os.File
}

const outputPrefix = "recast-configs-"

// newOutputDir makes an output directory, after it has removed the directories of killed processes.
func newOutputDir() (outputDir, error) {
	parent := inMemory()
	left, _ := filepath.Glob(filepath.Join(parent, outputPrefix+"*")) // the pattern is valid
	for _, path := range left {
		if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // the directory may not be locked yet
		}
		if lock, err := lockDir(path); err == nil {
			_ = outputDir{path, lock}.remove() // the next run tries again
		}
	}
	path, err := os.MkdirTemp(parent, outputPrefix)
	if err != nil {
		return outputDir{}, fmt.Errorf("make a directory for its output: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return outputDir{}, errors.Join(fmt.Errorf("lock %s: %w", path, err), os.RemoveAll(path))
	}
	return outputDir{path, lock}, nil
}

// lockDir locks a directory until the caller closes the file. It returns an error if a process has locked the
// directory.
func lockDir(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// remove deletes the directory with its contents, then the lock.
func (d outputDir) remove() error {
	err := os.RemoveAll(d.path)
	if err != nil {
		err = fault.WithHint(fault.MachineConfig.Refusedf("remove plaintext: %w", err), "delete %s yourself: it holds machine configurations", d.path)
	}
	return errors.Join(err, d.lock.Close())
}

// keyVariables are the variables in which sops and age look for their keys, and in which the key services of clouds
// look for credentials.
var keyVariables = []string{"SOPS_*", "AGE_*", "AWS_*", "AZURE_*", "GOOGLE_*", "CLOUDSDK_*", "VAULT_*", "HC_VAULT_*", "GNUPGHOME", "GPG_*", "SSH_AUTH_SOCK"}

var (
	// github.com/getsops/sops, stores/yaml: the mapping "sops" of each document holds the metadata.
	sopsMetadata = regexp.MustCompile(`(?m)^sops:\s*$`)
	sopsMAC      = regexp.MustCompile(`(?m)^\s+mac: ["']?ENC\[`)
	// filippo.io/age, internal/format and armor.
	ageHeaders = [][]byte{[]byte("age-encryption.org/v1"), []byte("-----BEGIN AGE ENCRYPTED FILE-----")}
)

// encryption returns the name of the program that encrypted a text; "" for plaintext.
func encryption(text []byte) string {
	for _, header := range ageHeaders {
		if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), header) {
			return "age"
		}
	}
	if sopsMetadata.Match(text) && sopsMAC.Match(text) {
		return "sops"
	}
	return ""
}

func (s *Source) decrypted(ctx context.Context, f file) ([]byte, error) {
	var args []string
	program := encryption(f.text)
	switch program {
	case "":
		return f.text, nil
	case "sops":
		args = []string{"sops", "--decrypt", "--input-type", "yaml", "--output-type", "yaml", "/dev/stdin"}
	case "age":
		keys, err := s.ageKeys()
		if err != nil {
			return nil, fault.WithHint(fault.MachineConfig.Configf("%s is encrypted with age: %w", f.name, err),
				"SOPS_AGE_KEY_FILE names the file with the age identity")
		}
		args = []string{"age", "--decrypt", "--identity", keys}
	}
	var plain bytes.Buffer
	err := s.o.program(ctx, command.Program{Args: args, Stdin: f.text, Stdout: &plain}, func() []string { return redact.YAML(plain.Bytes()) })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("%s is encrypted with %s, and there is no %s in PATH", f.name, program, program),
			"install %s, or have talos.machineConfigs run a program that writes plaintext", program)
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("decrypt %s: %s: %w", f.name, program, err),
			"the key has to be where %s finds it: %s", program, map[string]string{
				"sops": "SOPS_AGE_KEY_FILE, ~/.config/sops/age/keys.txt, gpg-agent or the key service that the file names",
				"age":  "SOPS_AGE_KEY_FILE or ~/.config/sops/age/keys.txt",
			}[program])
	}
	return plain.Bytes(), nil
}

// ageKeys returns the file with age identities, from the places where sops looks for the file
// (github.com/getsops/sops, age/keysource.go).
func (s *Source) ageKeys() (string, error) {
	variable := func(name string) string {
		entry, _ := cluster.Find(s.o.Env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
		return strings.TrimPrefix(entry, name+"=")
	}
	config := cmp.Or(variable("XDG_CONFIG_HOME"), filepath.Join(variable("HOME"), ".config"))
	file := cmp.Or(variable("SOPS_AGE_KEY_FILE"), filepath.Join(config, "sops", "age", "keys.txt"))
	_, err := os.Stat(file)
	return file, err
}

// Encrypt returns a configuration as sops encrypts it for a file with this absolute path: by the rules in the
// .sops.yaml that sops finds in o.Base or above. Encrypt fails if a secret stays in the clear.
func (o Options) Encrypt(ctx context.Context, path string, text cluster.Secret) ([]byte, error) {
	args := []string{"sops", "--encrypt", "--input-type", "yaml", "--output-type", "yaml", "--filename-override", path, "/dev/stdin"}
	out, err := o.encrypted(ctx, path, args, text, fmt.Sprintf("a .sops.yaml in %s or above has to have a rule for this file: creation_rules with path_regex and age, or another key", o.Base))
	secrets := redact.YAML(text)
	switch {
	case err != nil:
		return nil, err
	case encryption(out) == "" || slices.ContainsFunc(redact.YAML(out), func(value string) bool { return value != "" && slices.Contains(secrets, value) }):
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: sops leaves a secret in the clear", path), "nothing was written; the rule in .sops.yaml must not leave out values that are secret: see encrypted_regex and unencrypted_regex there")
	}
	return out, nil
}

// encrypted runs the program of the arguments, which encrypts a text for a file; hint is for an error of the program.
func (o Options) encrypted(ctx context.Context, path string, args []string, text cluster.Secret, hint string) ([]byte, error) {
	var out bytes.Buffer
	err := o.program(ctx, command.Program{Args: args, Stdin: text, Stdout: &out}, func() []string { return redact.YAML(text) })
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fault.MachineConfig.Configf("there is no %s in PATH to encrypt %s", args[0], path), "install %s", args[0])
	case err != nil:
		return nil, fault.WithHint(fault.MachineConfig.Refusedf("encrypt %s: %s: %w", path, args[0], err), "%s", hint)
	}
	return out.Bytes(), nil
}

// Protect encrypts a text for a file with this absolute path. With recipients, Protect uses age. Without recipients,
// it uses SOPS if a .sops.yaml in o.Base or above has a rule for the file. by names the program. Otherwise by is "",
// and out is the text.
func (o Options) Protect(ctx context.Context, path string, recipients []string, text cluster.Secret) (out []byte, by string, err error) {
	if len(recipients) > 0 {
		out, err = o.encryptByAge(ctx, path, recipients, text)
		return out, "age", err
	}
	ruled, err := o.ruled(path)
	switch {
	case err != nil:
		return nil, "", err
	case !ruled:
		return text, "", nil
	}
	out, err = o.Encrypt(ctx, path, text)
	return out, "sops", err
}

func (o Options) encryptByAge(ctx context.Context, path string, recipients []string, text cluster.Secret) ([]byte, error) {
	args := []string{"age", "--encrypt", "--armor"}
	for _, r := range recipients {
		args = append(args, "--recipient", r)
	}
	out, err := o.encrypted(ctx, path, args, text, "a recipient is a public key: the line of age-keygen's output that has age1…, or an SSH key")
	if err == nil && encryption(out) != "age" {
		return nil, fault.MachineConfig.Refusedf("encrypt %s: age wrote something else than an encrypted file", path)
	}
	return out, err
}

// ruled reports whether the .sops.yaml that sops finds from o.Base on has a rule for the file. It decides as sops
// does: by path_regex, on the path relative to the .sops.yaml (github.com/getsops/sops, config/config.go).
func (o Options) ruled(path string) (bool, error) {
	for dir := o.Base; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, ".sops.yaml")
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			if dir == filepath.Dir(dir) {
				return false, nil
			}
			continue
		}
		var rules struct {
			Rules []struct {
				PathRegex string `yaml:"path_regex"`
			} `yaml:"creation_rules"`
		}
		if err == nil {
			err = yaml.Unmarshal(text, &rules)
		}
		if err != nil {
			return false, fault.MachineConfig.Configf("%s: %w", file, err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return false, fault.MachineConfig.Configf("%s: %w", file, err)
		}
		for _, rule := range rules.Rules {
			matches, err := regexp.MatchString(rule.PathRegex, name)
			if err != nil || matches {
				return matches, fault.As(fault.Config, fault.Prefix(file, err))
			}
		}
		return false, nil
	}
}

// Render says from which secrets and patches configurations are made, as talosctl gen config makes them. The patches
// are applied in this order.
type Render struct {
	Cluster               string
	Endpoint              string // of Kubernetes: "https://10.0.0.1:6443"
	Secrets               string // path of a file of talosctl gen secrets
	Talos                 string // release that determines their defaults and documents: "v1.14"
	Kubernetes            string // version: "v1.35.4"
	Installer             string // image; recast sets its own image, and the disk, before it applies a configuration
	ControlPlanes         []string
	SANs                  []string // further names and addresses of the Kubernetes API
	DNSDomain             string   // "": cluster.local
	All                   []string // paths of the patches of every node; below: of a role, and of single nodes
	OfControls, OfWorkers []string
	OfNode                map[string][]string
}

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
			return nil, fault.WithHint(fault.MachineConfig.Configf("%s is not a patch of a machine configuration: %s", path, withoutValues(err, text)),
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
