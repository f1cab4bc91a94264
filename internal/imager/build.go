package imager

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/recast-sh/recast/images"
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
