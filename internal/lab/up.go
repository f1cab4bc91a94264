package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/spf13/cobra"
)

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
	// dataDisks is how many persistent disks a worker has; seabios gives every
	// second node firmware without UEFI.
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

// freePlaces finds a free loopback prefix and free ports, so that several labs can run
// at once.
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
