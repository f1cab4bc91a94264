package imager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

func installerJob() images.ImagerJob {
	return images.ImagerJob{
		Output: images.OutputInstaller, Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Customization: schematics.Customization{
			KernelArgs: []string{"console=ttyS0", "recast.lock=sha256-1"}, Meta: []schematics.MetaValue{{Key: 12, Value: "on"}},
			Bootloader: "sd-boot",
		},
		BaseInstaller: images.ImagerInput{Ref: "ghcr.io/siderolabs/installer-base@sha256:ab", File: "in/installer-base"},
		Extensions:    []images.ImagerInput{{Ref: "ghcr.io/acme/frr@sha256:cd", File: "in/0.tar"}},
		SchematicID:   "5e", Schematic: "customization: {}\n",
	}
}

func isoJob() images.ImagerJob {
	job := installerJob()
	job.Output, job.BaseInstaller = images.OutputISO, images.ImagerInput{}
	return job
}

func diskJob() images.ImagerJob {
	job := isoJob()
	job.Output = images.OutputDisk
	return job
}

// workDir is a job's directory.
func workDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(dir, "in"), 0o700))
	return dir
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	return must.Get(New(o))(t)
}

func read(t *testing.T, path string) string {
	t.Helper()
	b := must.Get(os.ReadFile(path))(t)
	return string(b)
}

// bootable is the profile of what machines boot, without its output.
const bootable = `arch: amd64
platform: nocloud
secureboot: false
version: v1.13.9
customization:
    extraKernelArgs:
        - console=ttyS0
        - recast.lock=sha256-1
    metaContents:
        - key: 12
          value: "on"
input:
    systemExtensions:
        - tarballPath: OUT/in/0.tar
        - tarballPath: OUT/in/schematic.tar
`

func TestBuildWithACommand(t *testing.T) {
	t.Parallel()
	type row struct {
		job     images.ImagerJob
		file    string
		profile string
	}
	must.Each(t, map[string]row{
		"installer": {job: installerJob(), file: "installer-amd64.tar", profile: `arch: amd64
platform: nocloud
secureboot: false
version: v1.13.9
customization:
    extraKernelArgs:
        - console=ttyS0
        - recast.lock=sha256-1
input:
    baseInstaller:
        imageRef: ghcr.io/siderolabs/installer-base@sha256:ab
        ociPath: OUT/in/installer-base
    systemExtensions:
        - tarballPath: OUT/in/0.tar
        - tarballPath: OUT/in/schematic.tar
output:
    kind: installer
    outFormat: raw
`},
		"iso": {job: isoJob(), file: "nocloud-amd64.iso", profile: bootable + `output:
    kind: iso
    outFormat: raw
    isoOptions:
        bootloader: sd-boot
`},
		"disk image": {job: diskJob(), file: "nocloud-amd64.qcow2", profile: bootable + `output:
    kind: image
    outFormat: raw
    imageOptions:
        diskSize: 1306525696
        diskFormat: qcow2
        diskFormatOptions: cluster_size=8k
        bootloader: sd-boot
`},
	}, func(t *testing.T, c row) {
		dir := workDir(t)
		var notes []string
		file := must.Get(client(t, Options{Command: []string{os.Args[0], fakeArg, "good", "{out}"}}).
			Build(t.Context(), dir, c.job, func(text string) { notes = append(notes, text) }))(t)
		if file != c.file || read(t, filepath.Join(dir, file)) != "image" {
			t.Errorf("made %s: %q", file, read(t, filepath.Join(dir, file)))
		}
		got := strings.ReplaceAll(read(t, filepath.Join(dir, "profile.yaml")), dir, "OUT")
		must.Equal(t, "profile", c.profile, got)
		want := []string{"skipped pulling overlay (no overlay)", "rebuilding initramfs...", "one", "two", "initramfs ready"}
		must.Equal(t, "notes", want, notes)
	})
}

func TestProfileWithAnOverlay(t *testing.T) {
	t.Parallel()
	job := isoJob()
	job.Customization = schematics.Customization{OverlayOptions: map[string]any{"configTxt": "gpu_mem=128"}}
	job.Overlay = &images.ImagerOverlay{
		Name: "rpi_generic", Host: images.ImagerInput{File: "in/overlay-host.tar"}, Target: images.ImagerInput{File: "in/overlay.tar"},
	}
	got := must.Get(profileOf(job, "/out"))(t)
	want := `arch: amd64
platform: nocloud
secureboot: false
version: v1.13.9
customization: {}
input:
    overlayInstaller:
        tarballPath: /out/in/overlay.tar
    systemExtensions:
        - tarballPath: /out/in/0.tar
        - tarballPath: /out/in/schematic.tar
overlay:
    name: rpi_generic
    image:
        tarballPath: /out/in/overlay-host.tar
    options:
        configTxt: gpu_mem=128
output:
    kind: iso
    outFormat: raw
`
	must.Equal(t, "profile", want, string(got))
}

func TestBuildThatGoesWrong(t *testing.T) {
	t.Parallel()
	type row struct{ way, want string }
	must.Each(t, map[string]row{
		"nothing made": {"nothing", "succeeded, but did not make installer-amd64.tar"},
		"empty file":   {"empty", "succeeded, but installer-amd64.tar is not a file with content"},
		"failure":      {"half", "exit status 3: it said last: " + strings.Repeat("x", 400) + "; no space left on device"},
	}, func(t *testing.T, c row) {
		_, err := client(t, Options{Command: []string{os.Args[0], fakeArg, c.way, "{out}"}}).
			Build(t.Context(), workDir(t), installerJob(), nil)
		must.Hold(t, err != nil && strings.HasSuffix(err.Error(), c.want), "err = %v, want one that ends in %q", err, c.want)
	})
}

// Leftovers of an earlier run must not count as this run's output.
func TestBuildTakesNothingOldForNew(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, "installer-amd64.tar"), []byte("old"), 0o600))
	_, err := client(t, Options{Command: []string{os.Args[0], fakeArg, "nothing", "{out}"}}).Build(t.Context(), dir, installerJob(), nil)
	must.Contain(t, "error", fmt.Sprint(err), "did not make")
}

// Nothing that the program has started keeps running, although it ignores SIGTERM.
func TestACancelledBuildEndsWithEverythingItStarted(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	note := func(string) {
		for range 30_000 { // until the child holds its file
			if _, err := os.Stat(filepath.Join(dir, "holding")); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
	}
	_, err := client(t, Options{Command: []string{os.Args[0], fakeArg, "linger", "{out}"}}).Build(ctx, dir, installerJob(), note)
	must.Hold(t, errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "it said last: building"),
		"err = %v", err)
	f := must.Get(os.Open(filepath.Join(dir, "held")))(t)
	defer f.Close()
	deadline := time.Now().Add(30 * time.Second)
	for err = errors.New("not tried"); err != nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	must.Hold(t, err == nil, "the program's child is still running: %v", err)
}

func TestABuildThatTakesTooLong(t *testing.T) {
	t.Parallel()
	_, err := client(t, Options{Command: []string{os.Args[0], fakeArg, "linger", "{out}"}, Timeout: 100 * time.Millisecond}).
		Build(t.Context(), workDir(t), installerJob(), nil)
	if err == nil || !strings.Contains(err.Error(), "it was stopped because it had not ended after 100ms") || errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// engine puts a stand-in for docker or podman where the client finds it.
func engine(t *testing.T, c *Client, name string) (log string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, name))
	}
	must.Do(t, err)
	c.find = func(program string) (string, error) {
		if program != name {
			return "", &exec.Error{Name: program, Err: exec.ErrNotFound}
		}
		return filepath.Join(dir, name), nil
	}
	return filepath.Join(dir, name+".log")
}

var containerName = regexp.MustCompile(`recast-imager-[a-z0-9]+`)

func TestBuildInAContainer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docker", "podman"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dir := client(t, Options{}), workDir(t)
			log := engine(t, c, name)
			job := installerJob()
			job.Image = c.Image() + "@sha256:ef"
			layout := filepath.Join(dir, "in", "installer-base")
			must.Do(t, os.Mkdir(layout, 0o700))
			must.Do(t, os.WriteFile(filepath.Join(layout, "index.json"), nil, 0o600))
			must.Get(c.Build(t.Context(), dir, job, nil))(t)
			want := "run --rm --interactive --quiet --network none --cap-drop ALL --security-opt no-new-privileges --name NAME --stop-timeout 1 --volume OUT:/out:Z ghcr.io/siderolabs/imager@sha256:ef -\n"
			got := strings.ReplaceAll(containerName.ReplaceAllString(read(t, log), "NAME"), dir, "OUT")
			must.Equal(t, "command", want, got)
			if profile := read(t, filepath.Join(dir, "profile.yaml")); !strings.Contains(profile, "tarballPath: /out/in/0.tar\n") {
				t.Errorf("the profile doesn't name files as the container sees them:\n%s", profile)
			}
			// Without capabilities, root in the container reads only what everyone may read.
			for path, mode := range map[string]os.FileMode{"in": 0o755, "in/installer-base": 0o755, "in/installer-base/index.json": 0o644, markerFile: 0o644} {
				must.Equal(t, path, mode, must.Get(os.Stat(filepath.Join(dir, path)))(t).Mode().Perm())
			}
		})
	}
}

func TestACancelledBuildRemovesItsContainer(t *testing.T) {
	t.Parallel()
	c, dir := client(t, Options{}), workDir(t)
	log := engine(t, c, "docker")
	job := installerJob()
	job.Image = "example.com/slow@sha256:ef"
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Build(ctx, dir, job, func(string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	asked := strings.Split(read(t, log), "\n")
	remove := "rm --force " + containerName.FindString(asked[0])
	must.Hold(t, len(asked) >= 2 && asked[1] == remove, "it was asked for %q, want %q", asked, remove)
}

func TestReady(t *testing.T) {
	t.Parallel()
	c := client(t, Options{})
	log := engine(t, c, "podman")
	program := strings.TrimSuffix(log, ".log")
	if what, err := c.Ready(t.Context()); err != nil || what != program+" with "+DefaultImage || read(t, log) != "info\n" {
		t.Errorf("%s, %v; it was asked for %q", what, err, read(t, log))
	}
	must.Do(t, os.WriteFile(program+".down", nil, 0o600))
	if _, err := c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "Cannot connect") || len(fault.Hints(err)) != 1 {
		t.Errorf("err = %v, hints %q", err, fault.Hints(err))
	}
	self := client(t, Options{Command: []string{os.Args[0], "{out}"}})
	must.Equal(t, "result", os.Args[0], must.Get(self.Ready(t.Context()))(t))
}

func TestNoEngine(t *testing.T) {
	t.Parallel()
	c := client(t, Options{})
	c.find = func(program string) (string, error) { return "", &exec.Error{Name: program, Err: exec.ErrNotFound} }
	_, err := c.Build(t.Context(), workDir(t), installerJob(), nil)
	must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
	must.Equal(t, "hints", 1, len(fault.Hints(err)))
}

func TestEngineThatFails(t *testing.T) {
	t.Parallel()
	c := client(t, Options{})
	engine(t, c, "docker")
	job := installerJob()
	job.Image = "example.com/absent@sha256:ef"
	_, err := c.Build(t.Context(), workDir(t), job, nil)
	if err == nil || !strings.HasSuffix(err.Error(), "exit status 125: it said last: docker: manifest unknown") || len(fault.Hints(err)) != 1 {
		t.Errorf("err = %v, hints %q", err, fault.Hints(err))
	}
}

func TestACommandNeedsAPlaceForItsOutput(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"build"}, {"build", "-"}, {"{out}"}} {
		if _, err := New(Options{Command: command}); fault.KindOf(err) != fault.Config {
			t.Errorf("New(%q): err = %v", command, err)
		}
	}
	_, err := client(t, Options{Command: []string{"/nowhere/build", "{out}"}}).Build(t.Context(), workDir(t), installerJob(), nil)
	must.Equal(t, "kind", fault.Config, fault.KindOf(err))
}

// TestImagerGetsNoSecrets: the imager gets only the variables that docker and podman
// need, and those that its configuration names.
func TestImagerGetsNoSecrets(t *testing.T) {
	for _, name := range []string{"GITHUB_TOKEN", "PROXMOX_VE_API_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"} {
		t.Setenv(name, "planted")
	}
	t.Setenv("DOCKER_HOST", "unix:///run/d.sock")
	t.Setenv("BUILD_CACHE", "/var/cache/mine")
	dir := t.TempDir()
	c := client(t, Options{Command: []string{"sh", "-c", "env >'{out}/env'"}, Env: []string{"BUILD_CACHE"}})
	p := must.Get(c.program(dir, "", ""))(t)
	must.Do(t, c.run(t.Context(), p, nil, func(string) {}))
	got := read(t, filepath.Join(dir, "env"))
	if strings.Contains(got, "planted") || !strings.Contains(got, "DOCKER_HOST=unix:///run/d.sock\n") || !strings.Contains(got, "BUILD_CACHE=/var/cache/mine\n") {
		t.Errorf("it got\n%s", got)
	}
}

// fakeArg turns this test binary into a program that replaces the imager.
const fakeArg = "-fake-imager"

func TestMain(m *testing.M) {
	if engine := filepath.Base(os.Args[0]); engine == "docker" || engine == "podman" {
		os.Exit(fakeEngine(os.Args[1:]))
	}
	if len(os.Args) > 3 && os.Args[1] == fakeArg {
		os.Exit(fakeImager(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// fakeImager behaves in one way, and writes the profile that it got to out.
func fakeImager(way, out string) int {
	profile, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = os.WriteFile(filepath.Join(out, "profile.yaml"), profile, 0o600)
	}
	file := filepath.Join(out, "nocloud-amd64.iso")
	switch {
	case strings.Contains(string(profile), "kind: installer"):
		file = filepath.Join(out, "installer-amd64.tar")
	case strings.Contains(string(profile), "kind: image"):
		file = filepath.Join(out, "nocloud-amd64.qcow2")
	}
	if strings.HasPrefix(way, "build") {
		return code(errors.Join(err, build(way, profile, out)))
	}
	switch way {
	case "good":
		fmt.Fprint(os.Stderr, "skipped pulling overlay (no overlay)\nprofile ready:\narch: amd64\ninput:\n  kernel:\n    path: /vmlinuz\n"+
			"rebuilding initramfs...\n    one\nrebuilding initramfs...\n    \x1b[31mtwo\x1b[0m\ninitramfs ready")
		err = errors.Join(err, os.WriteFile(file, []byte("image"), 0o600))
	case "nothing":
	case "empty":
		err = errors.Join(err, os.WriteFile(file, nil, 0o600))
	case "half":
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 10_000)+"\nno space left on device")
		_ = os.WriteFile(file, []byte("ima"), 0o600)
		return 3
	case "linger":
		child := exec.Command(os.Args[0], fakeArg, "stay", out)
		err = errors.Join(err, child.Start())
		fmt.Println("building")
		time.Sleep(time.Minute)
	case "stay":
		// Its lock on the file shows that it runs, whichever process reaps it.
		signal.Ignore(syscall.SIGTERM)
		f, err := os.Create(filepath.Join(out, "held"))
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(out, "holding"), nil, 0o600)
		}
		time.Sleep(time.Minute)
		return code(err)
	}
	return code(err)
}

// fakeEngine records its arguments beside itself, and runs the fake imager on the volume.
func fakeEngine(args []string) int {
	log, err := os.OpenFile(os.Args[0]+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return code(err)
	}
	fmt.Fprintln(log, strings.Join(args, " "))
	if _, err := os.Stat(os.Args[0] + ".down"); err == nil {
		fmt.Fprintln(os.Stderr, "Cannot connect to the Docker daemon")
		return 1
	}
	volume := slices.Index(args, "--volume")
	if volume < 0 {
		return 0
	}
	out, _, _ := strings.Cut(args[volume+1], ":")
	switch {
	case strings.Contains(args[len(args)-2], "absent"):
		fmt.Fprintln(os.Stderr, "docker: manifest unknown")
		return 125
	case strings.Contains(args[len(args)-2], "slow"):
		fmt.Println("building")
		time.Sleep(time.Minute)
	}
	return fakeImager("good", out)
}

func code(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
