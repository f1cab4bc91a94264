// Package lab is recast lab: commands that start a simulated datacentre, and commands that act in a running one. The
// datacentre itself is package sim.
package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
)

// Program is what the commands need from the program that they belong to.
type Program struct {
	Out, Err io.Writer
	// Run runs another command of recast.
	Run func(ctx context.Context, args ...string) error
	// Differs is the error that Run returns for a command that exits with 2.
	Differs error
	// Lock locks the schematics of a recast.yaml, and returns the YAML of each schematic by its name.
	Lock func(ctx context.Context, config string) (map[string]string, error)
}

// newShellCmds returns the commands of a Proxmox node's shell that are needed to undo an exchange by hand. The help
// shows only qm.
func newShellCmds(p Program) []*cobra.Command {
	var list []*cobra.Command
	for _, program := range []string{"qm", "ha-manager", "pvesh", "pvesm"} {
		c := newShellCmd(p, program)
		c.Hidden = program != "qm"
		list = append(list, c)
	}
	return list
}

func newShellCmd(p Program, program string) *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: program + " [--dir DIR] [--node NODE] ARGUMENT...", Short: "Run " + program + " as root on a Proxmox node of a running lab",
		Long: `Simulate Proxmox's qm, as root on a node of a running lab, with the subcommands
that are needed to undo an unfinished exchange by hand: config, create, set, disk
move, disk rescan, start, stop, shutdown, unlock, destroy. recast lab ha-manager,
recast lab pvesh and recast lab pvesm cover the other steps. The procedure is in
docs/notes/proxmox.md; practise it here.`,
		Example: `  recast lab qm config 9031
  qm() { recast lab qm "$@"; }      # then commands for root's shell work unchanged`,
		Args: cobra.MinimumNArgs(1),
	}
	c.Flags().StringVar(&node, "node", "pve1", "Proxmox `node` whose shell it is")
	c.Flags().SetInterspersed(false) // after the first word, options belong to the program
	return asking(p, c, func(ctx context.Context, dir string, args []string) (string, error) {
		return sim.AskShell(ctx, dir, node, append([]string{program}, args...))
	})
}

// asking makes c a command that asks the lab in the directory of --dir, and prints the answer.
func asking(p Program, c *cobra.Command,
	ask func(ctx context.Context, dir string, args []string) (string, error),
) *cobra.Command {
	dir := c.Flags().String("dir", "lab", "working `directory` of the running lab")
	c.RunE = func(c *cobra.Command, args []string) error {
		out, err := ask(c.Context(), *dir, args)
		fmt.Fprint(p.Out, out)
		if _, unreachable := errors.AsType[*url.Error](err); !unreachable && !errors.Is(err, fs.ErrNotExist) {
			return err // the lab answered
		}
		return fault.WithHint(err, "is the lab running? recast lab up --dir %s", *dir)
	}
	return c
}

func newSlowCmd(p Program) *cobra.Command {
	var d time.Duration
	c := &cobra.Command{
		Use: "slow SERVER", Short: "Make an API of a running lab slow for some time",
		Long: `Make the API of proxmox, of talos (all machines) or of kubernetes slow. It handles
requests only when the time is over, and drops those whose client has given up by
then. A roll continues and says what it waits for.`,
		Example: `  recast lab slow kubernetes --dir lab
  recast lab slow talos --for 2m --dir lab`,
		Args: cobra.ExactArgs(1), ValidArgs: sim.SlowServers,
	}
	c.Flags().DurationVar(&d, "for", time.Minute, "how long, in the lab's time; 0 ends it")
	return asking(p, c, func(ctx context.Context, dir string, args []string) (string, error) {
		switch {
		case !slices.Contains(sim.SlowServers, args[0]):
			return "", fault.Configf("%s: a lab has the APIs %s", args[0], strings.Join(sim.SlowServers, ", "))
		case d < 0:
			return "", fault.Configf("--for must not be less than 0")
		}
		if err := sim.AskSlow(ctx, dir, args[0], d); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s is slow for %s\n", args[0], d), nil
	})
}

const (
	envName  = "env"      // for sh, bash and zsh
	fishName = "env.fish" // for fish
)

// addEnv adds the files that a shell sources: they set the variables of the lab's clients, and add recast's own
// directory to PATH.
func addEnv(files map[string][]byte, env map[string]string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program's own file: %w", err)
	}
	var sh, fish strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&sh, "export %s=%s\n", name, shQuote(env[name]))
		fmt.Fprintf(&fish, "set -gx %s %s\n", name, fishQuote(env[name]))
	}
	bin := filepath.Dir(self)
	fmt.Fprintf(&sh, "PATH=%s:\"$PATH\"\n", shQuote(bin))
	fmt.Fprintf(&fish, "set -gx PATH %s $PATH\n", fishQuote(bin))
	files[envName], files[fishName] = []byte(sh.String()), []byte(fish.String())
	return nil
}

func shQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishQuote quotes a text for fish, which knows two escapes in single quotes: \\ and \'.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

func newPveumCmd(p Program) *cobra.Command {
	c := &cobra.Command{
		Use: "pveum [--dir DIR] ARGUMENT...", Short: "Manage permissions of users and tokens in a running lab",
		Long: `Simulate Proxmox's pveum in a running lab: roles, users, tokens and the access
control list, as far as a token needs them. The commands that recast doctor prints
work here unchanged.

The token $POOR_TOKEN in the lab's env file exists but has no privileges.`,
		Example: `  recast lab pveum role add Recast --privs "VM.Audit,Sys.Audit"
  recast lab pveum acl modify / --tokens poor@pve!lab --roles Recast`,
		Args: cobra.MinimumNArgs(1),
	}
	c.Flags().SetInterspersed(false) // after the first word, options belong to pveum
	return asking(p, c, sim.AskPveum)
}

// markName is the file that marks a directory as a lab's. The file is locked while the lab runs.
const markName = ".recast-lab"

const (
	lockName  = "recast.lock"
	stateName = ".recast"
)

// writable are the paths that a lab writes, or that recast writes for a lab. A lab refuses a directory in which
// someone else's file is at such a path.
var writable = []string{
	"recast.yaml", lockName, stateName, "schematics/default.yaml", "schematics/storage.yaml", "talosconfig", "kubeconfig",
	envName, fishName, sim.ControlFile,
}

// mark is the content of the mark: the files that the lab has made, each with its SHA-256, or with "" if recast
// replaces the file.
type mark struct {
	About   string            `json:"about"`
	Made    map[string]string `json:"made"`
	Console string            `json:"console,omitempty"` // the file of --console
}

// directory is the working directory of a lab. No other lab can open the directory until it is closed.
type directory struct {
	path string // absolute
	root *os.Root
	mark *os.File
	was  mark // mark of the earlier lab
	now  mark
}

// openDirectory makes the directory, or opens a directory that is empty or that an earlier lab has made. It changes
// nothing in the directory, and refuses a directory that has, at a path of the lab, anything that a lab did not make.
func openDirectory(dir string) (_ *directory, err error) {
	d := &directory{now: mark{About: "recast lab up made this directory, and may replace the files in this list", Made: map[string]string{}}}
	if d.path, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the lab's directory: %w", err)
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, fault.Configf("make the lab's directory: %w", err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("read the lab's directory: %w", err)
	}
	marked := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == markName && e.Type().IsRegular() })
	if len(entries) > 0 && !marked {
		return nil, fault.WithHint(fault.Refusedf("%s is not empty, and no lab made it: nothing in it was touched", dir), anotherDir)
	}
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return nil, fmt.Errorf("open the lab's directory: %w", err)
	}
	if err := d.take(dir, len(entries) > 1); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

const anotherDir = "recast lab up --dir with a directory that does not exist yet makes another lab there"

// take locks the mark, and reads what the earlier lab has made.
func (d *directory) take(dir string, more bool) (err error) {
	if d.mark, err = d.root.OpenFile(markName, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open the lab's mark: %w", err)
	}
	switch err := syscall.Flock(int(d.mark.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fault.WithHint(fault.Refusedf("a lab runs in %s", dir), "Ctrl-C in its terminal ends it; "+anotherDir)
	case err != nil:
		return fmt.Errorf("lock the lab's mark: %w", err)
	}
	b, err := io.ReadAll(d.mark)
	if err != nil {
		return fmt.Errorf("read the lab's mark: %w", err)
	}
	if len(b) > 0 || more {
		if err := json.Unmarshal(b, &d.was); err != nil {
			return fault.WithHint(fault.Refusedf("%s does not say what the lab made: %w", filepath.Join(dir, markName), err), anotherDir)
		}
	}
	return d.requireOwn(dir)
}

// requireOwn refuses to begin anew if a path of the lab holds anything that the earlier lab did not make, or that was
// changed since.
func (d *directory) requireOwn(dir string) error {
	var others []string
	for _, name := range writable {
		own, err := d.own(name)
		if err != nil {
			return fmt.Errorf("look at the lab's directory: %w", err)
		}
		if !own {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("%s was made by a lab, but not as it is now: %s; nothing was touched", dir, strings.Join(others, ", ")),
		anotherDir+"; to begin again here, move those files away first")
}

// own says whether the path is free, or holds what the earlier lab made. A lock that the lab made may have changed,
// since recast replaces it. The directory .recast is the lab's if the lab's recast.yaml is unchanged and no file of
// another project is beside it.
func (d *directory) own(name string) (bool, error) {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if info, err := d.root.Lstat(parent); err == nil && !info.IsDir() {
			return false, nil
		}
	}
	info, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if name == stateName {
		_, made := d.was.Made["recast.yaml"]
		if !made || !info.IsDir() {
			return false, nil
		}
		if _, err := d.root.Lstat("recast.yaml"); err != nil {
			return false, nil // somebody moved the file away: whose runs these are is unknown
		}
		if other, err := d.hasProject(); err != nil || other {
			return false, err
		}
		return d.own("recast.yaml")
	}
	sum, made := d.was.Made[name]
	if !made || !info.Mode().IsRegular() {
		return false, nil
	}
	if sum == "" {
		return true, nil
	}
	b, err := d.root.ReadFile(name)
	return checksum(b) == sum, err
}

// nodesKey matches the key that every file for recast -c has, whatever the file's name.
var nodesKey = regexp.MustCompile(`(?m)^nodes:`)

// hasProject says whether the directory has a file of another project: the runs and backups of that project are in
// the same .recast.
func (d *directory) hasProject() (bool, error) {
	files, err := fs.Glob(d.root.FS(), "*.y*ml")
	for _, name := range files {
		if name == "recast.yaml" {
			continue
		}
		b, err := d.root.ReadFile(name)
		if err != nil || nodesKey.Match(b) {
			return true, err
		}
	}
	return false, err
}

// clear removes the files that the earlier lab has made.
func (d *directory) clear() error {
	for _, name := range writable {
		if err := d.root.RemoveAll(name); err != nil {
			return fmt.Errorf("clear the lab's directory: %w", err)
		}
	}
	if err := d.root.Remove("schematics"); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("clear the lab's directory: %w", err)
	}
	return nil
}

// write removes the files of the earlier lab, then writes the mark, then the new files. The mark comes before the
// files, so that a lab that is killed meanwhile can begin anew. New files replace no file.
func (d *directory) write(files map[string][]byte) error {
	for name, content := range files {
		d.now.Made[name] = checksum(content)
	}
	if err := d.requireOwn(d.path); err != nil {
		return err // somebody wrote a file there while the servers started
	}
	d.now.Made[lockName], d.now.Made[sim.ControlFile] = "", ""
	if err := d.clear(); err != nil {
		return err
	}
	if err := d.putMark(); err != nil {
		return err
	}
	return writeFiles(d.root, files)
}

func (d *directory) putMark() error {
	b, err := json.MarshalIndent(d.now, "", "  ")
	if err == nil {
		err = d.mark.Truncate(0)
	}
	if err == nil {
		_, err = d.mark.WriteAt(append(b, '\n'), 0)
	}
	if err == nil {
		err = d.mark.Sync()
	}
	return fault.Prefix("write the lab's mark", err)
}

// console opens the file for the machines' consoles. It appends to a file that is not empty only if a lab of this
// directory has made the file.
func (d *directory) console(file string) (io.WriteCloser, error) {
	if file == "" {
		return nopCloser{io.Discard}, nil
	}
	at, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("--console: %w", err)
	}
	switch info, err := os.Stat(at); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fault.Configf("--console: %w", err)
	case !info.Mode().IsRegular(): // a terminal, a pipe
		return os.OpenFile(at, os.O_WRONLY, 0)
	case info.Size() > 0 && d.was.Console != at:
		return nil, fault.WithHint(fault.Refusedf("--console %s: the file is not empty, and no lab in %s made it", file, d.path), "name a file that does not exist yet")
	}
	d.now.Console = at
	return os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Close lets another lab use the directory.
func (d *directory) Close() error {
	errs := []error{d.root.Close()}
	if d.mark != nil {
		errs = append(errs, syscall.Flock(int(d.mark.Fd()), syscall.LOCK_UN), d.mark.Close())
	}
	return errors.Join(errs...)
}

// writeFiles writes new files below root.
func writeFiles(root *os.Root, files map[string][]byte) error {
	for name, content := range files {
		if err := writeFile(root, name, content); err != nil {
			return fmt.Errorf("write the lab's directory: %w", err)
		}
	}
	return nil
}

func writeFile(root *os.Root, name string, content []byte) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func newCheckCmd(p Program) *cobra.Command {
	return asking(p, &cobra.Command{
		Use: "check", Short: "Check that a running lab lost nothing",
		Long: `Compare a running lab with its state at the start, as the datacentre itself sees it:
the SHA-256 of every persistent disk's bytes, the members of etcd, and that no
promise about them was broken meanwhile. Exits 0 if all of that holds. In a lab that
was empty, etcd may have any members, but no cluster may have been bootstrapped twice,
and a disk is watched from when Talos has made a user volume on it.`,
		Example: `  recast lab check --dir lab`,
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, dir string, _ []string) (string, error) {
		before, now, err := sim.AskState(ctx, dir)
		if err == nil {
			err = unharmed(before, now)
		}
		if err != nil {
			return "", err
		}
		return figures(before) + "\n", nil
	})
}

// figures describes the result for a lab that lost nothing.
func figures(s sim.State) string {
	if len(s.Etcd) == 0 {
		return "no promise was broken"
	}
	return fmt.Sprintf("%d of %d persistent disks intact, %d of %d etcd members as before", len(s.Disks), len(s.Disks), len(s.Etcd), len(s.Etcd))
}

// unharmed compares a lab with its state at the start.
func unharmed(before, now sim.State) error {
	errs := []error{sameDisks(before.Disks, now.Disks)}
	if len(before.Etcd) > 0 && !slices.Equal(before.Etcd, now.Etcd) {
		errs = append(errs, fault.Refusedf("the members of etcd are %s; before: %s", listed(now.Etcd), listed(before.Etcd)))
	}
	for _, broken := range now.Broken {
		errs = append(errs, fault.Refusedf("promise broken: %s", broken))
	}
	return errors.Join(errs...)
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// sameDisks compares the datacentre's hashes of the disks before and after.
func sameDisks(before, after map[string]string) error {
	var errs []error
	for _, serial := range slices.Sorted(maps.Keys(before)) {
		switch now, found := after[serial]; {
		case !found:
			errs = append(errs, fault.Refusedf("persistent disk %s is gone", serial))
		case now != before[serial]:
			errs = append(errs, fault.Refusedf("persistent disk %s has changed: %s, before %s", serial, now, before[serial]))
		}
	}
	return errors.Join(errs...)
}

func Command(p Program) *cobra.Command {
	c := &cobra.Command{
		Use: "lab", Short: "Run a simulated datacentre, to try recast without hardware",
		Long: `The lab is a simulated datacentre on the loopback interface of this machine:
Proxmox VE, a Talos cluster in its VMs, the Kubernetes API, an Image Factory and
a registry, each behind its real wire protocol. recast, talosctl and kubectl talk
to it as they would to real servers. Nothing outside this machine is touched.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newUpCmd(p), newPatchCmd(p), newCheckCmd(p), newPveumCmd(p), newSlowCmd(p), newDemoCmd(p))
	c.AddCommand(newShellCmds(p)...)
	return c
}

// labFlags are the flags that shape a lab.
type labFlags struct {
	dir     string
	console string
	// kubernetes is the directory of a real control plane; "": none.
	kubernetes string
	// dataDisks is how many persistent disks a worker has; seabios gives every second node firmware without UEFI.
	dataDisks int
	seabios   bool
	// noConfig leaves out recast.yaml, schematics and lock, for recast init to write.
	noConfig bool
	o        sim.Options
}

func (f *labFlags) register(c *cobra.Command, speed float64, controlPlanes int) {
	c.Flags().IntVar(&f.o.ControlPlanes, "control-planes", controlPlanes, "control planes of the cluster")
	c.Flags().IntVar(&f.o.Workers, "workers", 2, "workers of the cluster")
	c.Flags().IntVar(&f.o.Hosts, "proxmox-nodes", 1, "nodes of the Proxmox cluster")
	c.Flags().BoolVar(&f.o.EtcdOnData, "etcd-on-data", false, "control planes have etcd's data on a persistent disk")
	c.Flags().BoolVar(&f.o.Holder, "holder", false, "persistent disks belong to data VMs, one per Proxmox node")
	c.Flags().IntVar(&f.dataDisks, "data-disks", 1, "persistent disks of each worker")
	c.Flags().BoolVar(&f.seabios, "seabios", false, "every second node has SeaBIOS instead of UEFI firmware")
	c.Flags().DurationVar(&f.o.Latency, "latency", 0, "delay of each answer of a server, in real time")
	c.Flags().Float64Var(&f.o.Speed, "speed", speed, "how many simulated seconds pass in one real second")
}

// keptRequests is how many requests a lab remembers, even if it runs for days.
const keptRequests = 10_000

func newUpCmd(p Program) *cobra.Command {
	var f labFlags
	c := &cobra.Command{
		Use: "up", Short: "Serve a lab until interrupted",
		Long: `Start a lab, write a working directory for it, print "ready DIR" when
everything answers, and serve until interrupted.

The directory is new, or empty, or of an earlier lab, whose files are replaced unless
somebody changed them. It holds recast.yaml, recast.lock, schematics/, talosconfig,
kubeconfig and env, which you source (fish: env.fish). With --no-config it holds only
these last, like for a cluster that recast does not manage yet: recast init writes the rest.

With --empty there is no cluster and no VM, and the directory holds only env:
recast init --new writes the rest, and recast bootstrap makes the cluster.`,
		Example: `  recast lab up --dir lab
  cd lab && . ./env && recast drift     # in another terminal
  recast lab up --dir lab --no-config   # prints the recast init command
  recast lab up --dir lab --empty       # Proxmox without a cluster`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(f.checkEmpty(c), f.check()); err != nil {
				return err
			}
			return up(c.Context(), p, f)
		},
	}
	c.Flags().StringVar(&f.dir, "dir", "lab", "working `directory` to write")
	c.Flags().StringVar(&f.console, "console", "", "`file` for the console output of the machines")
	c.Flags().StringVar(&f.o.TalosVersion, "talos-version", sim.TalosVersion, "Talos `version` of the machines: 1.12, 1.13 or 1.14")
	c.Flags().StringVar(&f.o.KubernetesVersion, "kubernetes-version", sim.KubernetesVersion, "Kubernetes `version` in the first configuration of the machines")
	c.Flags().StringVar(&f.kubernetes, "kubernetes", "", "`directory` with the kubeconfig of a real, empty control plane that serves the cluster's objects (see internal/e2e/kubernetes)")
	c.Flags().BoolVar(&f.noConfig, "no-config", false, "write no recast.yaml, schematics and recast.lock: recast init does")
	c.Flags().BoolVar(&f.o.Empty, "empty", false, "no cluster and no VM, only Proxmox and the servers of images: recast bootstrap makes the cluster")
	f.register(c, 5, 1)
	return c
}

// up serves a lab until ctx ends.
func up(ctx context.Context, p Program, f labFlags) (err error) {
	if f.o.Kubernetes, err = readControlPlane(f.kubernetes); err != nil {
		return err
	}
	d, err := openDirectory(f.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	screens, err := d.console(f.console)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, screens.Close()) }()
	f.o.Console, f.o.Requests = screens, keptRequests
	lab, err := startLab(ctx, p, f, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	switch {
	case f.o.Empty:
		fmt.Fprintln(p.Err, newHint(f.dir, f.o))
	case f.noConfig:
		fmt.Fprintln(p.Err, initHint(f.dir))
	}
	fmt.Fprintf(p.Out, "ready %s\n", f.dir)
	<-ctx.Done() // an interrupt is the normal end
	return nil
}

// checkEmpty refuses flags that shape a cluster if the lab has none.
func (f *labFlags) checkEmpty(c *cobra.Command) error {
	for _, name := range []string{"control-planes", "workers", "etcd-on-data", "holder", "data-disks", "seabios", "kubernetes", "no-config"} {
		if f.o.Empty && c.Flags().Changed(name) {
			return fault.Configf("--empty and --%s: an empty lab has no cluster", name)
		}
	}
	return nil
}

// initHint returns the command with which recast finds the lab. The command must name the registry, since the
// machines do not know it.
func initHint(dir string) string {
	return fmt.Sprintf(`next: cd %s && . ./env && recast init --extensions "$LAB_EXTENSIONS" --fingerprint "$LAB_FINGERPRINT"`, dir)
}

// newHint returns the command that writes the files for a new cluster in an empty lab.
func newHint(dir string, o sim.Options) string {
	return fmt.Sprintf(`next: cd %s && . ./env && recast init --new --cluster home --addresses $LAB_NETWORK.11-$LAB_NETWORK.13/24 --gateway $LAB_NETWORK.1 \
        --talos-version %s --kubernetes-version %s --extensions "$LAB_EXTENSIONS" --factory "$LAB_FACTORY" --fingerprint "$LAB_FINGERPRINT"
      recast bootstrap cp1`, dir, o.TalosVersion, o.KubernetesVersion)
}

// readControlPlane reads the kubeconfig from a control plane's directory; nil if dir is "".
func readControlPlane(dir string) ([]byte, error) {
	if dir == "" {
		return nil, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, fault.Configf("--kubernetes: %w", err)
	}
	return b, nil
}

func newPatchCmd(p Program) *cobra.Command {
	var stale bool
	c := &cobra.Command{
		Use: "patch EXTENSION", Short: "Publish an extension again: same version, new digest",
		Long: `Publish an extension of a running lab under the same version with new content,
as an extension patch does, and restart the Image Factory, which would otherwise
continue to build the old one.`,
		Example: `  recast lab patch iscsi-tools --dir lab
  recast lab patch iscsi-tools --dir lab --stale-factory   # lock warns, build refuses`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&stale, "stale-factory", false, "do not restart the Image Factory")
	return asking(p, c, func(ctx context.Context, dir string, args []string) (string, error) {
		digest, err := sim.AskPatch(ctx, dir, args[0], !stale)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("published %s: %s\n", args[0], digest), nil
	})
}

// labVersion matches the Talos versions whose behaviour a lab simulates.
var labVersion = regexp.MustCompile(`^v1\.1[234]\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?$`)

// check refuses options that a lab can't have. It runs before any server starts.
func (f *labFlags) check() error {
	if f.o.ControlPlanes < 1 || f.o.Workers < 1 || f.o.Hosts < 1 {
		return fault.Configf("a lab has at least one control plane, one worker and one Proxmox node")
	}
	if v := f.o.TalosVersion; v != "" && !labVersion.MatchString(v) {
		return fault.Configf("--talos-version %s: a lab's machines run Talos 1.12, 1.13 or 1.14, as in %s", v, sim.TalosVersion)
	}
	if v := f.o.KubernetesVersion; v != "" {
		if err := sim.CheckKubernetes(cmp.Or(f.o.TalosVersion, sim.TalosVersion), v); err != nil {
			return fault.Configf("--kubernetes-version %s: %w", v, err)
		}
	}
	if f.dataDisks < 0 {
		return fault.Configf("--data-disks must not be less than 0")
	}
	if f.dataDisks != 1 || f.seabios {
		f.o.Layouts = []sim.Layout{{Data: f.dataDisks}, {Data: f.dataDisks, SeaBIOS: f.seabios}}
	}
	if f.o.Latency < 0 {
		return fault.Configf("--latency must not be less than 0")
	}
	if f.o.Speed <= 0 {
		return fault.Configf("--speed must be more than 0")
	}
	return nil
}

// startLab starts a lab: first the servers; then recast locks against the servers; then the machines, installed with
// the images of that lock. An empty lab has only the servers.
func startLab(ctx context.Context, p Program, f labFlags, d *directory) (_ *sim.Lab, err error) {
	o, err := freePlaces(f.o)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(p.Err, "starting the lab on %s.0\n", o.Prefix)
	lab, err := sim.New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lab.Close())
		}
	}()
	files, err := lab.Files()
	if err != nil {
		return nil, err
	}
	if err := addEnv(files, lab.Env(d.path)); err != nil {
		return nil, err
	}
	if f.o.Empty {
		err = d.write(files)
	} else {
		err = installLab(ctx, p, lab, d, files, f.noConfig)
	}
	if err != nil {
		return nil, err
	}
	return lab, lab.Announce(d.path)
}

// installLab writes the lab's files, and boots machines with the images of its lock.
func installLab(ctx context.Context, p Program, lab *sim.Lab, d *directory, files map[string][]byte, noConfig bool) error {
	schematics, err := lockLab(ctx, p, d, files, noConfig)
	if err != nil {
		return err
	}
	if err := lab.Install(ctx, schematics); err != nil {
		return err
	}
	fmt.Fprintln(p.Err, "booting the machines")
	return lab.WaitReady(ctx)
}

// lockLab writes the lab's files, locks its schematics, and returns them. With noConfig, the directory gets only
// talosconfig, kubeconfig and the env files.
func lockLab(ctx context.Context, p Program, d *directory, files map[string][]byte, noConfig bool) (_ map[string]string, err error) {
	if !noConfig {
		if err := d.write(files); err != nil {
			return nil, err
		}
		return p.Lock(ctx, filepath.Join(d.path, "recast.yaml"))
	}
	bare := map[string][]byte{}
	for _, name := range []string{"talosconfig", "kubeconfig", envName, fishName} {
		bare[name] = files[name]
	}
	if err := d.write(bare); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "recast-lab-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the lab's own lock: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the lab's own lock: %w", err)
	}
	defer root.Close()
	if err := writeFiles(root, files); err != nil {
		return nil, err
	}
	return p.Lock(ctx, filepath.Join(dir, "recast.yaml"))
}

// freePlaces finds a free loopback prefix and free ports, so that several labs can run at once.
func freePlaces(o sim.Options) (sim.Options, error) {
	o.Network = network.Loopback()
	for range 50 {
		prefix := fmt.Sprintf("127.%d.%d", 1+rand.IntN(254), rand.IntN(250))
		l, err := net.Listen("tcp", prefix+".1:8006")
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return o, fmt.Errorf("find a free address: %w", err)
		}
		o.Prefix = prefix
		o.Registry, o.Factory, err = freePorts()
		return o, err
	}
	return o, fault.WithHint(errors.New("no free address in 127.0.0.0/8"), "the lab needs the whole loopback range, as on Linux")
}

// freePorts finds ports at 127.0.0.1, the only address with which container tools speak plain HTTP. The ports are
// below the system's ephemeral ports: a connection could take an ephemeral port before the lab listens there.
func freePorts() (registry, factory string, err error) {
	const first, last, tries = 20000, 32000, 100
	var addrs []string
	for range tries {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first)))
		if err != nil {
			continue // taken
		}
		defer l.Close() // each port stays taken until both are found
		if addrs = append(addrs, l.Addr().String()); len(addrs) == 2 {
			return addrs[0], addrs[1], nil
		}
	}
	return "", "", fmt.Errorf("no two free ports at 127.0.0.1 between %d and %d", first, last)
}

func newDemoCmd(p Program) *cobra.Command {
	var f labFlags
	c := &cobra.Command{
		Use: "demo", Short: "Show a whole roll in under a minute",
		Long: `Start a lab in a temporary directory, patch an extension that every node has (same
version, new digest), and roll it onto all nodes by recreating their VMs, with the
commands that a person would type. At the end the SHA-256 of every persistent disk's
bytes, computed by the datacentre, must be the same as before, and etcd must have the
same members.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return demo(c.Context(), p, f) },
	}
	f.register(c, 40, 3)
	return c
}

func demo(ctx context.Context, p Program, f labFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	f.dir, err = os.MkdirTemp("", "recast-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(f.dir)) }()
	d, err := openDirectory(f.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	lab, err := startLab(ctx, p, f, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	undo, err := setenv(lab.Env(f.dir))
	if err != nil {
		return err
	}
	defer undo()

	before := lab.State()
	config := filepath.Join(f.dir, "recast.yaml")
	for _, step := range []struct {
		args []string
		want error
	}{
		{[]string{"drift"}, nil},
		{[]string{"lab", "patch", sim.CommonExtension, "--dir", f.dir}, nil},
		{[]string{"lock", "--update"}, nil},
		{[]string{"drift"}, p.Differs},
		{[]string{"plan"}, nil},
		{[]string{"roll", "--yes"}, nil},
		{[]string{"drift"}, nil},
		{[]string{"status"}, nil},
	} {
		fmt.Fprintf(p.Out, "\n$ recast %s\n", strings.ReplaceAll(strings.Join(step.args, " "), f.dir, "lab"))
		if err := p.Run(ctx, append([]string{"--config", config}, step.args...)...); !errors.Is(err, step.want) {
			return fmt.Errorf("recast %s: %w", step.args[0], errors.Join(err, unexpected(step.want)))
		}
	}
	now := lab.State()
	fmt.Fprintln(p.Out, "\nSHA-256 of every persistent disk, computed by the datacentre:")
	for _, serial := range slices.Sorted(maps.Keys(before.Disks)) {
		fmt.Fprintf(p.Out, "  %-12s before %s\n  %-12s after  %s\n", serial, before.Disks[serial], "", now.Disks[serial])
	}
	if err := unharmed(before, now); err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "demo: %s\n", figures(before))
	return nil
}

func unexpected(want error) error {
	if want == nil {
		return nil
	}
	return fmt.Errorf("expected: %w", want)
}

// setenv sets variables for the duration of the demo.
func setenv(env map[string]string) (undo func(), err error) {
	old := map[string]*string{}
	undo = func() {
		for name, value := range old {
			if value == nil {
				_ = os.Unsetenv(name) // the variable was unset before
			} else {
				_ = os.Setenv(name, *value) // the variable was set before
			}
		}
	}
	for name, value := range env {
		if was, set := os.LookupEnv(name); set {
			old[name] = &was
		} else {
			old[name] = nil
		}
		if err := os.Setenv(name, value); err != nil {
			return undo, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return undo, nil
}
