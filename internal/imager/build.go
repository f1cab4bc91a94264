package imager

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
)

// Build runs the imager once: see images.Imager.
func (c *Client) Build(ctx context.Context, dir string, job images.ImagerJob, note func(text string)) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	p, err := c.program(dir, job.Image, "recast-imager-"+strings.ToLower(rand.Text()))
	if err != nil {
		return "", err
	}
	if err := writeMarker(filepath.Join(dir, markerFile), job.SchematicID, job.Schematic); err != nil {
		return "", fmt.Errorf("write the schematic's entry: %w", err)
	}
	profile, err := profileOf(job, p.seen)
	if err != nil {
		return "", err
	}
	file := outputName(job)
	if err := os.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := c.run(ctx, p, profile, note); err != nil {
		return "", fmt.Errorf("run %s: %w", p.args[0], err)
	}
	if err := checkOutput(filepath.Join(dir, file)); err != nil {
		return "", fault.WithHint(fmt.Errorf("%s succeeded, but %w", p.args[0], err),
			"it has to read a profile on its standard input and to write %s where %s stands", file, outArgument)
	}
	return file, nil
}

// checkOutput says what is wrong with the output.
func checkOutput(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("did not make %s", filepath.Base(path))
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() == 0:
		return fmt.Errorf("%s is not a file with content", filepath.Base(path))
	}
	return nil
}

// outputName is the imager's name for its output: siderolabs/talos
// pkg/imager/profile/profile.go, OutputPath.
func outputName(job images.ImagerJob) string {
	switch job.Output {
	case images.OutputInstaller:
		return "installer-" + job.Arch + ".tar"
	case images.OutputDisk:
		return job.Platform + "-" + job.Arch + ".qcow2"
	}
	return job.Platform + "-" + job.Arch + ".iso"
}

// stopWithin bounds the time to stop a container.
const stopWithin = 10 * time.Second

// run runs the program to its end. If the context ends first, the program and all
// that it started end, too.
func (p program) run(ctx context.Context, timeout time.Duration, stdin []byte, note func(string)) error {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it was stopped because it had not ended after %v", timeout))
	defer cancel()
	said := newLines(note)
	err := command.Program{Args: p.args, Env: p.env, Stdin: stdin, Stop: func() { p.stopContainer(ctx) }}.Run(limited, said)
	if limited.Err() == nil {
		return p.explain(err, said)
	}
	return errors.Join(err, last(said))
}

// stopContainer ends the container, if there is one: the program only asked a daemon
// to run it. An error means that the container, or the daemon, is gone.
func (p program) stopContainer(ctx context.Context) {
	if p.stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.stop[0], p.stop[1:]...)
	cmd.Env = p.env
	_ = cmd.Run()
}

// explain adds the program's last line to how it ended.
func (p program) explain(err error, said *command.Lines) error {
	if err == nil {
		return nil
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	if last := last(said); last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	// docker-run(1), podman-run(1): 125 is the engine's own failure, not the container's.
	if p.stop != nil && ended && exit.ExitCode() == 125 {
		return fault.WithHint(fault.BuildFailed.Of(err), "%s itself failed: see whether `%s info` works for this user, and whether the image can be pulled", p.args[0], p.args[0])
	}
	return err
}

// siderolabs/talos pkg/imager/imager.go prints "profile ready:", then the profile.
var yamlLine = regexp.MustCompile(`^(\s|- |[A-Za-z]+:( |$))`)

// newLines reads the imager's output, without its profile, which adds nothing, and
// the headings that it repeats above each indented line.
func newLines(note func(string)) *command.Lines {
	dump, heading := false, ""
	return &command.Lines{Note: note, Drop: func(line string) bool {
		if dump && yamlLine.MatchString(line) {
			return true
		}
		dump = line == "profile ready:"
		if dump || line == heading {
			return true
		}
		if !strings.HasPrefix(line, " ") {
			heading = line
		}
		return false
	}}
}

// last is the last line that was printed; nil if there was none.
func last(said *command.Lines) error {
	if said.Last() == "" {
		return nil
	}
	return errors.New("it said last: " + said.Last())
}
