package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// builder is buildah, which needs no daemon, with its own store.
type builder struct {
	t     *testing.T
	store []string
}

func newBuilder(t *testing.T) builder {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("there is no buildah: apt-get install buildah")
	}
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("it takes root on Linux to enter an image without a container runtime")
	}
	dir := t.TempDir()
	return builder{t, []string{"--storage-driver", "vfs", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run")}}
}

func (b builder) runs(args ...string) string {
	b.t.Helper()
	c := exec.CommandContext(b.t.Context(), "buildah", slices.Concat(b.store, args)...)
	var out, story bytes.Buffer
	c.Stdout, c.Stderr = &out, &story
	if err := c.Run(); err != nil {
		b.t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, &story)
	}
	return strings.TrimSpace(out.String())
}

// base replaces the Containerfile's base image, which tests do not fetch: CA certificates and a user.
func (b builder) base() string {
	b.t.Helper()
	c := b.runs("from", "scratch")
	passwd := filepath.Join(b.t.TempDir(), "passwd")
	mustDo(b.t, os.WriteFile(passwd, []byte("nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"), 0o644))
	b.runs("copy", c, passwd, "/etc/passwd")
	if certs := "/etc/ssl/certs/ca-certificates.crt"; exists(certs) {
		b.runs("copy", c, certs, certs)
	}
	b.runs("commit", "--quiet", c, "localhost/base")
	return "localhost/base"
}

// TestImage builds the image of the Containerfile from the released binary, runs it as its
// user, and checks a lab as the nightly CronJob does.
func TestImage(t *testing.T) {
	bin := native(t)
	b := newBuilder(t)
	context := t.TempDir()
	platform := runtime.GOOS + "/" + runtime.GOARCH
	copyTo(t, bin, filepath.Join(context, platform, "recast"), 0o755)
	second, _ := operator(t, runtime.GOOS+"_"+runtime.GOARCH)
	copyTo(t, second, filepath.Join(context, platform, "recast-operator"), 0o755)
	b.runs("build", "--quiet", "--platform", platform, "--build-arg", "BASE="+b.base(), "--file", "../../../Containerfile", "--tag", "localhost/recast", context)
	requireConfig(t, b.runs("inspect", "--type", "image", "localhost/recast"))

	root := b.runs("mount", b.runs("from", "localhost/recast"))
	t.Cleanup(func() { // the test's context has ended by then
		_ = exec.Command("buildah", slices.Concat(b.store, []string{"rm", "--all"})...).Run()
	})
	if out, err := inside(t, root, nil, "version").Output(); err != nil || !strings.HasPrefix(string(out), "recast v") {
		t.Errorf("recast version: %s, %v", out, err)
	}
	if info, err := os.Stat(filepath.Join(root, "usr/bin/recast-operator")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("recast-operator: %+v, %v", info, err)
	}
	askLab(t, root, bin)
	t.Attr("images", "1")
}

func requireConfig(t *testing.T, inspected string) {
	t.Helper()
	var image struct {
		OCIv1 struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
				WorkingDir string
			}
		}
	}
	mustDo(t, json.Unmarshal([]byte(inspected), &image))
	got := image.OCIv1.Config
	if image.OCIv1.Architecture != runtime.GOARCH || got.User != "65532:65532" || got.WorkingDir != "/work" || !slices.Equal(got.Entrypoint, []string{"/usr/bin/recast"}) {
		t.Errorf("the image is %+v", image.OCIv1)
	}
}

// askLab runs drift in the image against a lab outside, with the mounts of
// docs/notes/release.md: all read-only but one directory.
func askLab(t *testing.T, root, bin string) {
	t.Helper()
	lab := startLab(t, bin)
	mustCopyDir(t, lab, filepath.Join(root, "work"))
	metrics := filepath.Join(root, "metrics")
	mustDo(t, errors.Join(os.Mkdir(metrics, 0o755), os.Chown(metrics, 65532, 65532)))
	env := append(labEnv(t, lab), "TALOSCONFIG=/work/talosconfig", "KUBECONFIG=/work/kubeconfig")
	out, err := inside(t, root, env, "drift", "--config", "/work/recast.yaml", "--metrics-file", "/metrics/recast.prom").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "in sync") {
		t.Errorf("recast drift: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(metrics, "recast.prom")); err != nil || !strings.Contains(string(text), `recast_command_exit_code{cluster="lab",command="drift"} 0`) {
		t.Errorf("metrics: %v\n%s", err, text)
	}
	if exists(filepath.Join(root, "work", ".recast")) {
		t.Error("drift has written to the directory of recast.yaml")
	}
}

// inside is recast as the image's user, with the image as its root filesystem.
func inside(t *testing.T, root string, env []string, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), "/usr/bin/recast", args...)
	c.Dir, c.Env = "/work", append([]string{"PATH=/usr/bin"}, env...)
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return c
}

// startLab starts a lab until the end of the test, and returns its directory.
func startLab(t *testing.T, bin string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lab")
	c := exec.CommandContext(t.Context(), bin, "lab", "up", "--dir", dir, "--speed", "100", "--control-planes", "1", "--workers", "1")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	mustDo(t, c.Start())
	t.Cleanup(func() { _ = c.Wait() }) // the end of the test interrupts it
	for range 1200 {
		if exists(filepath.Join(dir, "lab.json")) {
			return dir
		}
		<-time.After(100 * time.Millisecond) // waiting for another process
	}
	t.Fatal("the lab never came up")
	return ""
}

// labEnv are the variables of the lab's env file that hold no path.
func labEnv(t *testing.T, lab string) []string {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(lab, "env")))(t)
	var env []string
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if value = strings.Trim(value, "'"); ok && !strings.HasPrefix(value, "/") {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// mustCopyDir copies a job's mounts: readable by all, writable only by root.
func mustCopyDir(t *testing.T, from, to string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(from), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && name != "schematics":
			return fs.SkipDir // .recast and the lab's own files
		case e.Type().IsRegular():
			copyTo(t, filepath.Join(from, name), filepath.Join(to, name), 0o644)
		}
		return nil
	})
	mustDo(t, err)
}

func copyTo(t *testing.T, from, to string, mode fs.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, mode))
	}
	mustDo(t, err)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
