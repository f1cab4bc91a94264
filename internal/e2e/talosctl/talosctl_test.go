package talosctl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// boots is the maximum time until a machine of the lab answers again. talosctl must not wait for one that powers itself
// off or wipes itself: it does not end if it misses the event, which at the lab's speed lasts an eighth of a second.
const boots = 3 * time.Minute

// TestTalosctl uses Sidero's talosctl on the lab's machines as a person does.
func TestTalosctl(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.types("Read", reads()...)
	u.types("Look inside", insides()...)
	u.types("Roles", roles()...)
	u.types("Configuration", configuration()...)
	u.types("Health", health()...)
	u.types("Kubernetes", kubernetes("1.36.1", "1.37.1")...)
	u.types("Reboot, upgrade, roll back, shut down", lifecycle(u.installer("{wk1}"))...)
	u.powerOn("9032")
	u.types("The machine that was switched on", wk2Runs())
	u.types("Maintenance", maintenance()...)
	u.types("etcd", etcd()...)
	u.counts()
}

// TestOtherReleases tests what differs on machines of the previous and the next release.
func TestOtherReleases(t *testing.T) {
	t.Parallel()
	for version, differs := range map[string]struct {
		kubernetes  []command
		lifecycle   func(installer string) []command
		maintenance []command
	}{
		"v1.12.9": {kubernetes("1.35.5", "1.36.1"), legacy, bareMaintenance()},
		"v1.14.1": {kubernetes("1.36.1", ""), lifecycle, maintenance()},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			u := startLab(t, version)
			u.types("Read", reads()...)
			u.types("Look inside", insides()...)
			u.types("Configuration", configuration()...)
			u.types("Kubernetes", differs.kubernetes...)
			u.types("Reboot, upgrade, roll back, shut down", differs.lifecycle(u.installer("{wk1}"))...)
			u.powerOn("9032")
			u.types("The machine that was switched on", wk2Runs())
			u.types("Maintenance", differs.maintenance...)
			u.counts()
		})
	}
}

func wk2Runs() command {
	return command{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots}
}

// counts adds the lab's commands to the figures.
func (u *user) counts() {
	u.t.Attr("commands", strconv.Itoa(u.count))
	u.t.Attr("failed", strconv.Itoa(u.failed))
}

func (u *user) installer(machine string) string {
	u.t.Helper()
	out, stderr, _ := u.run("talosctl", "get", "machineconfig", "v1alpha1", "-n", machine, "-o", "jsonpath={.spec}")
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name == "image" && strings.Contains(value, "installer") {
			value, _, _ = strings.Cut(value, " #") // upgrade-k8s documents every field
			return value
		}
	}
	u.t.Fatalf("the configuration of %s names no installer:\n%s%s", machine, out, stderr)
	return ""
}

// powerOn powers a VM on in Proxmox, as soon as it is off.
func (u *user) powerOn(vmid string) {
	u.t.Helper()
	began := time.Now()
	_, stderr, code := u.run("recast", "lab", "qm", "--dir", "{dir}", "start", vmid)
	for code != 0 && time.Since(began) < boots {
		time.Sleep(200 * time.Millisecond)
		_, stderr, code = u.run("recast", "lab", "qm", "--dir", "{dir}", "start", vmid)
	}
	if code != 0 {
		u.t.Errorf("qm start %s: %s", vmid, stderr)
	}
}

var (
	recastBinary   = flag.String("recast", "../../../bin/recast", "the recast whose lab it is")
	talosctlBinary = flag.String("talosctl", "../../../bin/e2e/talosctl", "what is built of ./talosctl")
	ageBinary      = flag.String("age", "../../../bin/e2e/age", "age; beside it is age-keygen")
)

// user runs commands in the working directory of a lab.
type user struct {
	t        *testing.T
	dir      string
	programs map[string]string // built by make
	env      []string
	places   *strings.Replacer // "{cp1}" and the like
	count    int
	failed   int
}

// newUser is a user in a directory that is not there yet.
func newUser(t *testing.T) *user {
	t.Helper()
	u := &user{t: t, dir: filepath.Join(t.TempDir(), "lab"), programs: map[string]string{}, places: strings.NewReplacer()}
	for name, path := range map[string]string{"recast": *recastBinary, "talosctl": *talosctlBinary, "age": *ageBinary, "age-keygen": *ageBinary + "-keygen"} {
		abs, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			t.Fatalf("%v: make e2e-talosctl builds it", err)
		}
		u.programs[name] = abs
	}
	return u
}

// startLab starts a lab of three control planes and two workers with that version of Talos in a separate process.
func startLab(t *testing.T, version string) *user {
	t.Helper()
	u := newUser(t)
	c := exec.CommandContext(t.Context(), u.programs["recast"], "lab", "up", "--dir", u.dir, "--speed", "20", "--control-planes", "3", "--talos-version", version)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	mustDo(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { <-ended }) // the test's context has ended by then
	for range 600 {
		if _, err := os.Stat(filepath.Join(u.dir, "lab.json")); err == nil {
			u.findPlaces(version)
			return u
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the lab has ended: %v\n%s", err, &said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatal("the lab is not ready after a minute")
	return nil
}

// findPlaces derives the machines' addresses from that of Proxmox, and reads the lab's environment variables.
func (u *user) findPlaces(version string) {
	u.t.Helper()
	config := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(u.t)
	found := regexp.MustCompile(`https://([0-9]+\.[0-9]+\.[0-9]+)\.1:8006`).FindSubmatch(config)
	if found == nil {
		u.t.Fatalf("recast.yaml names no Proxmox:\n%s", config)
	}
	env := must(os.ReadFile(filepath.Join(u.dir, "env")))(u.t)
	for line := range strings.Lines(string(env)) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			u.env = append(u.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
	pairs := []string{"{dir}", u.dir, "{talos}", version}
	for name, last := range map[string]int{"cp1": 11, "cp2": 12, "cp3": 13, "wk1": 31, "wk2": 32} {
		pairs = append(pairs, "{"+name+"}", fmt.Sprintf("%s.%d", found[1], last))
	}
	u.places = strings.NewReplacer(pairs...)
}

const patience = 3 * time.Minute

func (u *user) run(name string, args ...string) (stdout, stderr string, code int) {
	for i, arg := range args {
		args[i] = u.places.Replace(arg)
	}
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, u.programs[name], args...)
	c.Dir = u.dir
	c.Env = slices.Concat(os.Environ(), []string{"NO_COLOR=1", "HOME=" + u.dir}, u.env)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	if err != nil {
		return "", err.Error(), -1
	}
	return out.String(), errs.String(), 0
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command is one command line and its expected result. "{cp1}" and the like are replaced by
// addresses, "{dir}" by the lab's directory, "{talos}" by the version of Talos.
type command struct {
	line   string   // words without spaces; talosctl's unless it begins with "recast"
	out    []string // regular expressions that stdout must match, each in one line
	not    []string // what neither stdout nor stderr may match
	errs   []string // what stderr must match
	code   int
	within time.Duration // it may be retried that long until all of that holds
	keep   string        // file for stdout
	unlike string        // file with content that stdout must not have
}

// types runs commands one after the other and prints their results. The first unexpected
// one ends the chapter, because the rest depends on it.
func (u *user) types(chapter string, commands ...command) {
	u.t.Helper()
	fmt.Fprintf(u.t.Output(), "\n%s\n", chapter)
	for _, c := range commands {
		began := time.Now()
		stdout, stderr, err := u.try(c)
		for err != nil && time.Since(began) < c.within {
			time.Sleep(200 * time.Millisecond)
			stdout, stderr, err = u.try(c)
		}
		u.count++
		program, args := c.words()
		fmt.Fprintf(u.t.Output(), "   $ %s %s   # %.1f s\n", program, strings.Join(args, " "), time.Since(began).Seconds())
		if err == nil {
			if program == "recast" {
				u.quote(c, stdout+stderr)
			}
			continue
		}
		u.failed++
		u.t.Errorf("%s %s: %v\n%s", program, u.places.Replace(strings.Join(args, " ")), err, shortened(stdout+stderr))
		return
	}
}

func (c command) words() (program string, args []string) {
	if words := strings.Fields(c.line); words[0] != "recast" {
		return "talosctl", words
	}
	return "recast", strings.Fields(c.line)[1:]
}

func (u *user) quote(c command, said string) {
	for line := range strings.Lines(said) {
		for _, expr := range slices.Concat(c.out, c.errs) {
			if regexp.MustCompile(u.pattern(expr)).MatchString(line) {
				fmt.Fprintf(u.t.Output(), "       %s\n", strings.TrimSpace(line))
				break
			}
		}
	}
}

// shortened is the end of a long text.
func shortened(text string) string {
	const lines = 20
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// try runs a command once; an error says how its result differs.
func (u *user) try(c command) (stdout, stderr string, err error) {
	program, args := c.words()
	stdout, stderr, code := u.run(program, args...)
	var errs []error
	if code != c.code {
		errs = append(errs, fmt.Errorf("exit code %d, want %d", code, c.code))
	}
	match := func(expr, text string) bool { return regexp.MustCompile("(?m)" + u.pattern(expr)).MatchString(text) }
	for _, expr := range c.out {
		if !match(expr, stdout) {
			errs = append(errs, fmt.Errorf("stdout has no %q", expr))
		}
	}
	for _, expr := range c.errs {
		if !match(expr, stderr) {
			errs = append(errs, fmt.Errorf("stderr has no %q", expr))
		}
	}
	for _, expr := range c.not {
		if match(expr, stdout+stderr) {
			errs = append(errs, fmt.Errorf("it says %q", expr))
		}
	}
	if c.unlike != "" {
		if before, err := os.ReadFile(filepath.Join(u.dir, c.unlike)); err != nil || string(before) == stdout {
			errs = append(errs, fmt.Errorf("stdout is what it was (%v)", err))
		}
	}
	if c.keep != "" {
		errs = append(errs, os.WriteFile(filepath.Join(u.dir, c.keep), []byte(stdout), 0o600))
	}
	return stdout, stderr, errors.Join(errs...)
}

// pattern inserts addresses into a regular expression.
func (u *user) pattern(expr string) string {
	return regexp.MustCompile(`\{[a-z]+[0-9]?\}`).ReplaceAllStringFunc(expr, func(place string) string {
		return regexp.QuoteMeta(u.places.Replace(place))
	})
}

// TestBehindItsBack makes recast check machines that talosctl has just changed, and repair
// them; if it refuses, its hint leads to a cluster in sync.
func TestBehindItsBack(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	other, own := u.installer("{cp1}"), u.installer("{wk1}")
	u.types("As it was", command{line: "recast drift", out: inSync})
	u.types("An upgrade to another image", upgradedBehind(other)...)
	u.types("An upgrade that waits for a reboot", pendingBehind(other)...)
	u.types("A staged upgrade, and another install image", stagedBehind(other)...)
	u.types("A machine without its configuration", resetBehind()...)
	u.types("A machine without its system", command{line: "reset -n {wk1} --wait=false"},
		command{
			line: "recast plan", code: 1, within: boots,
			errs: []string{`VM 9031 "wk1" on pve1 is switched off: read machine {wk1}`, `hint: start VM 9031 "wk1" on pve1 in Proxmox`},
		})
	u.insertISO("9031")
	u.powerOn("9031")
	u.types("It boots the ISO", slices.Concat([]command{
		{line: "apply-config -i -n {wk1} -f {dir}/wk1.yaml", within: boots},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `boot ISO .* is still in ide2`, `boot-media 1$`}, within: boots},
	}, rolled(`^  wk1 upgraded in place`))...)
	u.types("A shutdown", command{line: "shutdown -n {wk2} --wait=false"},
		command{line: "recast drift", code: 1, within: boots, out: []string{`^unread +wk2`, `VM 9032 "wk2" on pve1 is switched off`}},
		command{line: "recast roll --yes", code: 1, errs: []string{`a plan needs every node's answer`, `hint: start VM 9032 "wk2" on pve1 in Proxmox`}})
	u.powerOn("9032")
	u.types("It is on again", command{line: "recast drift", out: inSync, within: boots})
	u.types("A member of etcd that was removed", removedBehind(u.member("cp3"), own)...)
	u.types("The end", command{line: "recast lab check --dir {dir}", out: []string{`persistent disks`}})
	u.counts()
}

var inSync = []string{`^5 nodes in sync`}

// rolled is recast's roll of these nodes, with its expected output.
func rolled(nodes ...string) []command {
	return []command{
		{line: "recast roll --yes", out: nodes},
		{line: "recast drift", out: inSync},
	}
}

func upgradedBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --image " + other, errs: []string{`upgrade completed`, `post check passed`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `extension iscsi-tools v0\.2\.0 is missing`, `^1 of 5 nodes are stale`}, within: boots},
		{line: "rollback -n {wk1}"},
		{line: "recast drift", out: inSync, within: boots},
		{line: "upgrade -n {wk1} --image " + other, errs: []string{`upgrade completed`, `post check passed`}},
		{line: "recast plan", out: []string{`^  recreate  wk1 `, `stale: extension iscsi-tools v0\.2\.0 is missing`}, within: boots},
	}, rolled(`wk1 recreated as build`), []command{
		{line: "rollback -n {wk1}", code: 1, errs: []string{`previous UKI not found`}},
	})
}

func pendingBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --no-reboot --image " + other, errs: []string{`upgrade completed`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}}, // the old system runs
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `is installed, but .* is running: the next reboot starts the other system`, `pending-reboot 1`}},
	}, rolled(`wk1 recreated as build`))
}

func stagedBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --legacy --stage --image " + other, errs: []string{`post check passed`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `extension iscsi-tools v0\.2\.0 is missing`}, within: boots},
		{line: `patch mc -n {wk2} --patch {"machine":{"install":{"image":"` + other + `"}}}`, errs: []string{`patched MachineConfigs`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk2 `, `install image of its configuration: `, `^2 of 5 nodes are stale`}},
	}, rolled(`wk1 recreated as build`, `wk2 upgraded in place`))
}

func resetBehind() []command {
	return []command{
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`^machine:`}, keep: "wk1.yaml"},
		{line: "get machineconfig v1alpha1 -n {wk2} -o jsonpath={.spec}", out: []string{`^machine:`}, keep: "wk2.yaml"},
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false"},
		{line: "recast drift", code: 1, out: []string{`^unread +wk2 `, `is in maintenance mode: its machine has no configuration any more, as after talosctl reset`, `^1 of 5 nodes could not be read`}, within: boots},
		{line: "recast roll --yes", code: 1, errs: []string{`a plan needs every node's answer: node wk2`, `hint: its machine configuration can't be found: put it as wk2.yaml `}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml", within: boots},
		{line: "recast drift", out: inSync, within: boots},
	}
}

// removedBehind makes a roll of cp1 wait for cp3, whose data can't be used again.
func removedBehind(cp3, storage string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {cp1} --no-reboot --image " + storage, errs: []string{`upgrade completed`}},
		{line: "etcd remove-member -n {cp1} " + cp3},
		{line: "service etcd -n {cp3}", out: []string{`^STATE +(Waiting|Failed)`}, within: boots},
		{line: "recast drift", code: 2, out: []string{`^stale +cp1 `, `^in sync  cp3 `}},
		{
			line: "recast roll --yes", code: 4, out: []string{`cp1 recreate failed`},
			errs: []string{`cp1/gate: the cluster has 3 control planes, but etcd without cp1 only these members: cp2`, `hint: talosctl etcd members`},
		},
		{line: "reset -n {cp3} --graceful=false --reboot --system-labels-to-wipe EPHEMERAL --wait=false"},
		{line: "etcd members -n {cp1}", out: []string{` cp3 .* false`}, within: boots},
		{line: "service etcd -n {cp3}", out: []string{`^STATE +Running`, `^HEALTH +OK`}, within: boots},
		{line: "recast plan", out: []string{`^  recreate  cp1 `}, within: boots}, // its kubelet is Ready later than etcd
	}, rolled(`cp1 recreated as build`))
}

func (u *user) member(name string) string {
	u.t.Helper()
	out, stderr, _ := u.run("talosctl", "etcd", "members", "-n", "{cp1}")
	found := regexp.MustCompile(`([0-9a-f]{16}) +` + name + ` `).FindStringSubmatch(out)
	if found == nil {
		u.t.Fatalf("etcd has no member %s:\n%s%s", name, out, stderr)
	}
	return found[1]
}

// insertISO inserts the boot ISO of its schematic into a worker's VM.
func (u *user) insertISO(vmid string) {
	u.t.Helper()
	lock := must(os.ReadFile(filepath.Join(u.dir, "recast.lock")))(u.t)
	names := regexp.MustCompile(`recast-v[^ ]+\.iso`).FindAllString(string(lock), -1)
	if len(names) != 3 { // of two schematics, and the upload of the one that was published
		u.t.Fatalf("the ISOs of the lock: %v", names)
	}
	_, stderr, code := u.run("recast", "lab", "qm", "--dir", "{dir}", "set", vmid, "--ide2", "isos:iso/"+names[2]+",media=cdrom")
	if code != 0 {
		u.t.Errorf("qm set: %s", stderr)
	}
}

// TestEncrypted rolls a configuration that a real age has encrypted.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.env = append(u.env, "SOPS_AGE_KEY_FILE="+filepath.Join(u.dir, "key"), "PATH="+filepath.Dir(u.programs["age"])+":"+os.Getenv("PATH"))
	u.does("age-keygen", "-o", "key")
	u.does("recast", "config", "render", "--to", "plain", "--running", "--secrets", "wk1")
	plain := must(os.ReadFile(filepath.Join(u.dir, "plain", "wk1.yaml")))(t)
	key := must(os.ReadFile(filepath.Join(u.dir, "key")))(t)
	_, recipient, _ := strings.Cut(string(key), "public key: ")
	recipient, _, _ = strings.Cut(recipient, "\n")
	u.writes("wk1.plain", strings.Replace(string(plain), "machine:\n", "machine:\n    nodeLabels: {from-git: \"true\"}\n", 1))
	mustDo(t, os.Mkdir(filepath.Join(u.dir, "machine"), 0o700))
	u.does("age", "--encrypt", "--armor", "--recipient", recipient, "--output", "machine/wk1.yaml", "wk1.plain")
	project := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(t)
	u.writes("recast.yaml", strings.Replace(string(project), "talos:\n", "talos:\n  machineConfigs: machine\n", 1))
	u.types("An encrypted configuration",
		command{line: "recast config diff wk1", code: 2, out: []string{`^differs wk1$`, `machine\.nodeLabels\.from-git: added: true`}},
		command{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `its machine configuration differs: machine\.nodeLabels\.from-git`}},
		command{line: "recast roll --yes", out: []string{`^  wk1 got its configuration`}},
		command{line: "recast drift", out: inSync},
		command{line: "get mc v1alpha1 -n {wk1} -o yaml", out: []string{`from-git: "?true`}},
	)
	u.does("age-keygen", "-o", "other")
	mustDo(t, os.Rename(filepath.Join(u.dir, "other"), filepath.Join(u.dir, "key")))
	u.types("The wrong key", command{line: "recast drift", code: 1, out: []string{`^unread +wk1 `, `no identity matched`}})
	u.counts()
}

// TestReader runs recast with a talosconfig of role os:reader made by talosctl: drift says
// what it could not compare, and a plan is refused.
func TestReader(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.types("A talosconfig that only reads", command{line: "config new {dir}/reader --roles os:reader -n {cp1}"})
	config := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(t)
	reader := strings.Replace(string(config), "./talosconfig", "./reader", 1)
	mustDo(t, os.WriteFile(filepath.Join(u.dir, "reader.yaml"), []byte(reader), 0o600))
	u.types("What it is told",
		command{line: "recast drift -c {dir}/reader.yaml", out: []string{`note: not compared, because that needs a talosconfig with the role os:admin`, `^5 nodes in sync`}},
		command{line: "recast plan -c {dir}/reader.yaml", code: 1, errs: []string{`our talosconfig may not`, `hint: recast needs a talosconfig with the role os:admin`}})
	u.counts()
}

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

// TestRendered: what recast renders is what talosctl gen config makes of the same secrets, patches and versions.
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

var strippedBinary = flag.String("stripped", "../../../bin/e2e/recast", "recast as a release is built; talosctl is built the same way")

// maxSize is the maximum size of recast relative to talosctl: docs/performance.md.
const maxSize = 1.2

// TestSizes compares the two binaries.
func TestSizes(t *testing.T) {
	ours, theirs := sizeOf(t, *strippedBinary), sizeOf(t, *talosctlBinary)
	ratio := ours / theirs
	t.Logf("recast %.1f MB, talosctl %.1f MB: %.2f", ours/1e6, theirs/1e6, ratio)
	if ratio > maxSize {
		t.Errorf("recast is %.2f times as large as talosctl, more than %.1f", ratio, maxSize)
	}
}

func sizeOf(t *testing.T, file string) float64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatalf("%v: make e2e-talosctl builds it", err)
	}
	return float64(info.Size())
}

func reads() []command {
	return []command{
		{line: "version --client", out: []string{`Tag: +v1\.14\.1`}},
		{line: "version -n {cp1}", out: []string{`Tag: +v1\.14\.1`, `NODE: +{cp1}`, `Tag: +{talos}`, `OS/Arch: +linux/amd64`, `Enabled: +RBAC`}},
		{line: "version -n {cp2},{wk1}", out: []string{`NODE: +{cp2}`, `NODE: +{wk1}`}},
		{line: "version -e {wk1} -n {cp1}", code: 1, errs: []string{`PermissionDenied desc = no request forwarding`}},
		{line: "get rd -n {cp1}", out: []string{`machinestatuses\.runtime\.talos\.dev`, `machineconfigs\.config\.talos\.dev`}},
		{line: "get nonsense -n {cp1}", code: 1, errs: []string{`resource "nonsense" is not registered`}},
		{line: "get members -n {cp1}", out: []string{`^{cp1} +cluster +Member +cp3 .* controlplane +Talos \({talos}\)`, `wk2 .* worker `}},
		{line: "get members -n {wk1}", out: []string{`^{wk1} +cluster +Member +cp1 `}},
		{line: "get extensions -n {cp1}", out: []string{`ExtensionStatus +0 .* qemu-guest-agent`, `schematic +[0-9a-f]{64}`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "get machinestatus -n {cp1},{wk1}", out: []string{`^{cp1} +runtime +MachineStatus +machine +[0-9]+ +running +true`, `^{wk1} .* running +true`}},
		{line: "get machinestatus -n {cp1} -o yaml", out: []string{`^    stage: running`, `^        ready: true`}},
		{line: "get machinestatus machine -n {cp1} -o json", out: []string{`"stage": "running"`}},
		{line: "get disks -n {wk1}", out: []string{`Disk +sda .* 11 GB `, `Disk +sdb .* 22 GB .* virtio .* QEMU HARDDISK *`}},
		{line: "get discoveredvolumes -n {wk1}", out: []string{`sda[0-9] .* META`, `sdb1 .* u-data`}},
		{line: "get volumestatus -n {wk1}", out: []string{`EPHEMERAL .* ready +/dev/sda`, `STATE .* ready`}},
		{line: "get systemdisk -n {wk1}", out: []string{`system-disk +[0-9]+ +sda`}},
		{line: "get machineconfig -n {wk1}", out: []string{`MachineConfig +v1alpha1`}, not: []string{`persistent`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`^machine:`, `hostname: wk1`}, keep: "wk1.yaml"},
		{line: "get machineconfig v1alpha1 -n {wk2} -o jsonpath={.spec}", out: []string{`hostname: wk2`}, keep: "wk2.yaml"},
		{line: "get kernelcmdline -n {cp1}", out: []string{`KernelCmdline .*talos\.platform=nocloud`}},
		{line: "service -n {cp1}", out: []string{`^{cp1} +etcd +Running +OK +[0-9a-z]+ ago +Health check successful`, ` apid +Running`, ` auditd +Running +OK`, ` dashboard +Running +\?`, ` kubelet +Running +OK`, `trustd`}, not: []string{`2562047h`}},
		{line: "service -n {wk1}", out: []string{` kubelet +Running +OK`}, not: []string{`etcd|trustd`}},
		{line: "service etcd -n {cp1}", out: []string{`^STATE +Running`, `^HEALTH +OK`, `^EVENTS .*Running`}},
		{line: "service nonsense -n {cp1}", code: 1, errs: []string{`service "nonsense" is not registered on any nodes`}},
		{line: "service kubelet restart -n {wk1}", out: []string{`Service "kubelet" restarted`}},
		{line: "service kubelet stop -n {wk1}", code: 1, errs: []string{`service "kubelet" doesn't support stop operation via API`}},
		{line: "service kubelet start -n {wk1}", out: []string{`Service "kubelet" started`}},
		{line: "service apid stop -n {wk1}", code: 1, errs: []string{`service "apid" doesn't support stop operation via API`}},
		{line: "etcd members -n {cp1}", out: []string{`^{cp1} +[0-9a-f]{16} +cp2 +https://{cp2}:2380 +https://{cp2}:2379 +false`}},
		{line: "etcd members -n {wk1}", code: 1, errs: []string{`member list is only available on control plane nodes`}},
		{line: "etcd status -n {cp1},{cp2},{cp3}", out: []string{`^{cp3} +[0-9a-f]{16} .* +3\.[0-9]+\.[0-9]+ `}},
		{line: "etcd alarm list -n {cp1}"},
		{line: "etcd snapshot {dir}/db -n {cp1}", out: []string{`etcd snapshot saved to`, `snapshot info: hash [0-9a-f]{8}, revision [1-9]`}},
		{line: "dmesg -n {cp1}", out: []string{`^{cp1}: kern: +(info|notice): \[[^\]]+\]: Linux version `, `^{cp1}: user: warning: \[[^\]]+\]: \[talos\] machine is running and ready`, `\[talos\] phase startEverything \(9/9\): done, `, `\[talos\] service\[etcd\]\(Running\): Health check successful`}},
		{line: "kubeconfig --merge=false --force {dir}/kube -n {cp1}"},
		{line: "kubeconfig --merge=false -n {cp1} -", out: []string{`server: https://`, `name: admin@lab`}},
		{line: "kubeconfig --merge=false -n {wk1} -", code: 1, errs: []string{`kubeconfig is only available on control plane nodes`}},
		{line: "bootstrap -n {cp1}", code: 1, errs: []string{`AlreadyExists.*etcd data directory is not empty`}},
		{line: "bootstrap -n {wk1}", code: 1, errs: []string{`bootstrap (can only be performed on a|is only available on) control plane node`}},
	}
}

// insides are further reads of a machine: its logs, processes and network.
func insides() []command {
	return []command{
		{line: "logs machined -n {cp1}", out: []string{`^{cp1}: \d+/\d+/\d+ [0-9:.]+ boot sequence: 9 phase\(s\)$`, `service\[etcd\]\(Running\): Health check successful`}},
		{line: "logs machined --tail 0 -n {cp1}", not: []string{`.`}},
		{line: "logs kernel -n {wk1}", out: []string{`Linux version`}},
		{line: "logs etcd -n {cp1}", out: []string{`"msg":"ready to serve client requests"`}},
		{line: "logs kubelet -n {wk1}"},
		{line: "logs nonsense -n {cp1}", code: 1, errs: []string{`log "nonsense" was not registered`}},
		{line: "logs -k nonsense -n {cp1}", code: 1, errs: []string{`container "nonsense" not found`}},
		{line: "logs -k kube-system/kube-apiserver-cp1 -n {cp1}"},
		{line: "containers -n {cp1}", out: []string{`^{cp1} +system +apid .* RUNNING`, ` trustd `}},
		{line: "containers -k -n {cp1}", out: []string{`k8s.io +kube-system/kube-apiserver-cp1 .* SANDBOX_READY`, `kube-system/kube-apiserver-cp1:kube-apiserver:[0-9a-f]{12} +registry.k8s.io/kube-apiserver:v.* CONTAINER_RUNNING`}},
		{line: "processes -n {wk1}", out: []string{`^{wk1} +1 +S .* /sbin/init`, `/usr/local/bin/kubelet`}, not: []string{`/etcd`}},
		{line: "memory -n {wk1}", out: []string{`^{wk1} +[0-9]+ +[0-9]+ `}},
		{line: "mounts -n {wk1}", out: []string{`^{wk1} +/dev/sda[0-9] +[0-9.]+ .* /var$`}},
		{line: "image list -n {wk1}"},
		{line: "image list --namespace system -n {wk1}"},
		{line: "get mounts -n {wk1}", out: []string{`MountStatus +EPHEMERAL .* /var +xfs`}},
		{line: "get addresses -n {wk1}", out: []string{`AddressStatus +eth0/{wk1}/24 `}},
		{line: "get links -n {wk1}", out: []string{`LinkStatus +eth0 .* ether .* up `}},
		{line: "get routes -n {wk1}", out: []string{`RouteStatus .* eth0 `}},
		{line: "get nodeips -n {wk1} -o yaml", out: []string{`- {wk1}`}},
		{line: "get hostnamestatus -n {wk1}", out: []string{`HostnameStatus +hostname .* wk1`}},
		{line: "get nodename -n {wk1}", out: []string{`Nodename +nodename .* wk1`}},
		{line: "get affiliates -n {wk1}", out: []string{`Affiliate .* cp1 `}},
		{line: "get services -n {wk1}", out: []string{`Service +kubelet +[0-9]+ +true +true`}},
		{line: "get etcdmembers -n {cp1} -o yaml", out: []string{`memberID: `}},
		{line: "get metakeys -n {wk1}"},
	}
}

func roles() []command {
	return []command{
		{line: "config new {dir}/reader --roles os:reader -n {cp1}"},
		{line: "config new {dir}/operator --roles os:operator --crt-ttl 1h -n {cp1}"},
		{line: "config new {dir}/other --roles os:reader -n {wk1}", code: 1, errs: []string{`generate client configuration is only available on control plane nodes`}},
		{line: "config info --talosconfig {dir}/reader", out: []string{`Roles: +os:reader`, `Endpoints: +{cp1}`}},
		{line: "version --talosconfig {dir}/reader -n {wk1}", out: []string{`{talos}`}},
		{line: "get members --talosconfig {dir}/reader -n {cp2}", out: []string{`cp3`}},
		{line: "get machineconfig --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "kubeconfig - --merge=false --talosconfig {dir}/reader -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "reboot --wait=false --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "apply-config -f {dir}/wk1.yaml --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd snapshot {dir}/no --talosconfig {dir}/reader -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd forfeit-leadership --talosconfig {dir}/operator -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd snapshot {dir}/operators --talosconfig {dir}/operator -n {cp1}", out: []string{`etcd snapshot saved to`}},
		{line: "reset --talosconfig {dir}/operator -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "version -i -n {wk1}", code: 1, errs: []string{`error getting version from node {wk1}: .*code = Unavailable`}},
	}
}

// configuration are the ways to change a running machine's.
func configuration() []command {
	return []command{
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --dry-run", errs: []string{`Dry run summary:`, `No changes\.`}},
		{line: "apply-config -f {dir}/wk2.yaml -n {wk1} --dry-run", errs: []string{`Config diff:`, `^-hostname: wk1`, `^\+hostname: wk2`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1}", errs: []string{`Applied configuration without a reboot`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode staged", errs: []string{`Staged configuration to be applied after the next reboot`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode try --timeout 1h", errs: []string{`Applied configuration without a reboot`, `in 'try' mode and will be automatically reverted back in 1h0m0s`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode no-reboot", errs: []string{`Applied configuration without a reboot`}},
		{line: "apply-config -f {dir}/kube -n {wk1}", code: 1, errs: []string{`InvalidArgument|error decoding`}},
		{line: `patch mc -n {wk1} --patch {"machine":{"sysctls":{"vm.swappiness":"1"}}}`, errs: []string{`patched MachineConfigs\.config\.talos\.dev/v1alpha1 at the node {wk1}`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`vm.swappiness: "1"`}},
	}
}

func health() []command {
	all := []string{
		`etcd to be healthy: OK`, `etcd members to be consistent across nodes: OK`, `etcd members to be control plane nodes: OK`, `apid to be ready: OK`,
		`all nodes memory sizes: OK`, `all nodes disk sizes: OK`, `no diagnostics: OK`, `kubelet to be healthy: OK`, `all nodes to finish boot sequence: OK`,
		`all k8s nodes to report: OK`, `all control plane static pods to be running: OK`, `all control plane components to be ready: OK`,
		`all k8s nodes to report ready: OK`, `all k8s nodes to report schedulable: OK`,
	}
	return []command{
		{line: "health -n {cp1} --wait-timeout 20s", errs: append([]string{`discovered nodes: \[.*"{cp1}"`}, all...)},
		{line: "health -n {cp1} --wait-timeout 20s --server=false", errs: all},
		{line: "health -n {wk1} --wait-timeout 20s", code: 1, errs: []string{`cluster health check is only available on control plane nodes`}},
	}
}

// lifecycle are the commands that take a machine down for a while.
func lifecycle(installer string) []command {
	return slices.Concat([]command{
		{line: "reboot -n {wk1}", errs: []string{`actor ID: `, `events check condition met`, `post check passed`}},
		{line: "reboot --drain -m powercycle -n {wk1}", errs: []string{`node drained`, `post check passed`, `node uncordoned`}},
		{line: "upgrade -n {wk1} --image " + installer, errs: []string{`upgrade completed`, `node drained`, `post check passed`, `node uncordoned`}},
	}, rollback(), []command{
		{line: "upgrade --legacy -n {wk1} --image " + installer, errs: []string{`phase: drain action: START`, `task: upgrade action: STOP`, `post check passed`}, within: boots},
		{line: "upgrade -n {wk1} --image " + installer + "-nothing", code: 1, errs: []string{`error pulling upgrade image`}},
		{line: "shutdown --wait=false -n {wk2}"},
		{line: "version -n {wk2}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	})
}

// legacy is lifecycle for a machine with only the old API.
func legacy(installer string) []command {
	return slices.Concat([]command{
		{line: "reboot -n {wk1}", errs: []string{`actor ID: `, `events check condition met`, `post check passed`}},
		{line: "upgrade -n {wk1} --image " + installer, errs: []string{`New upgrade API is not available, falling back to legacy`, `sequence: upgrade action: START`, `post check passed`}},
	}, rollback(), []command{
		{line: "upgrade -n {wk1} --image " + installer + "-nothing", code: 1, errs: []string{`error validating installer image .*: not found`}},
		{line: "shutdown --wait=false -n {wk2}"},
		{line: "version -n {wk2}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	})
}

// rollback boots the other entry of an upgraded machine.
func rollback() []command {
	return []command{
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, keep: "boot"},
		{line: "rollback -n {wk1}"},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, unlike: "boot", within: boots},
		{line: "get machinestatus -n {wk1}", out: []string{`running +true`}, within: boots},
	}
}

// maintenance puts wk2 into maintenance mode and brings it back. Control planes that failed to connect to it back off
// for a while, each on its own: talosctl uses any of them.
func maintenance() []command {
	return []command{
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false", within: boots},
		{line: "get machinestatus -i -n {wk2}", out: []string{`maintenance +true`}, within: boots},
		{line: "version -i -n {wk2}", out: []string{`{talos}`}},
		{line: "get disks -i -n {wk2}", out: []string{`Disk +sda .* 11 GB .* virtio .* QEMU HARDDISK *`}},
		{line: "get systeminformation -i -n {wk2} -o yaml", out: []string{`uuid: 5ec0ffee-`}},
		{line: "get machineconfig -i -n {wk2}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "service -i -n {wk2}", out: []string{`apid +Running`}},
		{line: "dmesg -i -n {wk2}", out: []string{`Linux version`}},
		{line: "logs machined -i -n {wk2}", out: []string{`phase config \([0-9]/[0-9]\): 1 tasks\(s\)`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --mode staged", errs: []string{`Staged configuration to be applied after the next reboot`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --dry-run", errs: []string{`Dry run summary:`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml"},
		{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots},
	}
}

// bareMaintenance is maintenance with Talos 1.12's separate service: it reports its
// version only to SideroLink, and talosctl first asks for that.
func bareMaintenance() []command {
	unimplemented := []string{`Unimplemented desc = API is not implemented in maintenance mode`}
	return []command{
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false", within: boots},
		{line: "version -i -n {wk2}", code: 1, errs: unimplemented, within: boots},
		{line: "get disks -i -n {wk2}", code: 1, errs: unimplemented},
		{line: "service -i -n {wk2}", code: 1, errs: []string{`Unimplemented`}},
		{line: "dmesg -i -n {wk2}", code: 1, errs: []string{`Unimplemented`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --dry-run", errs: []string{`Node is running in maintenance mode and does not have a config yet`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml"},
		{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots},
	}
}

// kubernetes upgrades Kubernetes to a version that this release of Talos supports, and is refused invalid upgrades;
// unsupported is one that this release does not know, "" if there is none one step away.
func kubernetes(to, unsupported string) []command {
	all := []command{
		{line: "upgrade-k8s -n {wk1} --to " + to, code: 1, errs: []string{`kubeconfig is only available on control plane nodes`}},
		{line: "upgrade-k8s -n {cp1} --to 1.37.1", code: 1, errs: []string{`unsupported upgrade path 1\.35->1\.37 \(from "1\.35\.4" to "1\.37\.1"\)`}},
		{line: "upgrade-k8s -n {cp1} --to 1.34.6", code: 1, errs: []string{`unsupported upgrade path 1\.35->1\.34`}},
		{line: "upgrade-k8s -n {cp1} --to 1.35.66", code: 1, errs: []string{`failed pre-pulling images: .* registry\.k8s\.io/kube-apiserver:v1\.35\.66: not found`}},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v1\.35\.4`}},
		{
			line: "upgrade-k8s -n {cp1} --dry-run --to " + to,
			out: []string{
				`automatically detected the lowest Kubernetes version 1\.35\.4`, `update kube-apiserver: 1\.35\.4 -> ` + to, `update kubelet: 1\.35\.4 -> ` + to,
				`skipped in dry-run`,
			},
		},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v1\.35\.4`}},
		{line: "get staticpods kube-apiserver -n {cp2} -o yaml", out: []string{`image: registry\.k8s\.io/kube-apiserver:v1\.35\.4`}},
		{line: "upgrade-k8s -n {cp1} --to " + to, out: []string{
			`pre-pulling registry\.k8s\.io/kube-scheduler:v` + to, `kube-apiserver: waiting, config version mismatch: got "1", expected "2"`,
			`kube-scheduler: pod is not ready, waiting`, `waiting for kubelet restart`, `< "{wk2}": successfully updated`,
		}, not: []string{`skipped in dry-run`}},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v` + to}},
		{line: "get staticpods kube-apiserver -n {cp2} -o yaml", out: []string{`image: registry\.k8s\.io/kube-apiserver:v` + to, `talos\.dev/config-version: "2"`}},
		{line: "get manifests 10-kube-proxy -n {cp3} -o yaml", out: []string{`image: registry\.k8s\.io/kube-proxy:v` + to}},
		{line: "containers -k -n {cp3}", out: []string{` registry\.k8s\.io/kube-scheduler:v` + to + ` .* CONTAINER_RUNNING`}},
		{line: "get services kubelet -n {wk1}", out: []string{`Service +kubelet +[0-9]+ +true +true`}},
		{line: "upgrade-k8s -n {cp1} --to " + to, out: []string{`automatically detected the lowest Kubernetes version ` + to}, not: []string{`update kube-apiserver: `, `waiting for kubelet restart`, `^\+ `}},
		{line: "health -n {cp1} --wait-timeout 20s --server=false", errs: []string{`kube-proxy to report ready: OK`, `coredns to report ready: OK`}},
		{line: "image k8s-bundle --k8s-version v" + to, out: []string{`^registry\.k8s\.io/kube-proxy:v` + to}},
	}
	if unsupported != "" {
		all = append(all, command{line: "upgrade-k8s -n {cp1} --to " + unsupported, code: 1, errs: []string{`version of Kubernetes ` + unsupported + ` is too new to be used with Talos`}})
	}
	return all
}

// etcd are the commands that change its members; the last removes cp3 for good.
func etcd() []command {
	return []command{
		{line: "etcd forfeit-leadership -n {cp1}"},
		{line: "etcd alarm disarm -n {cp1}"},
		{line: "etcd defrag -n {cp1}"},
		{line: "etcd defrag -n {wk1}", code: 1, errs: []string{`etcd defragment is only available on control plane nodes`}},
		{line: "etcd remove-member -n {cp1} 00000000deadbeef", code: 1, errs: []string{`NotFound`}},
		{line: "etcd leave -n {cp3}"},
		{line: "etcd members -n {cp1}", out: []string{`cp2`}, not: []string{` cp3 `}},
		{line: "reset -n {cp3} --graceful=false --wait=false"},
		{line: "version -n {cp3}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	}
}
