package imager

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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

// fakeEngine records its arguments beside itself, and runs the fake imager on the
// volume.
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

// must returns v, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what came with what is wanted.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// each runs a test for every case, all at once.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tc)
		})
	}
}
