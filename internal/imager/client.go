// Package imager is the adapter to Talos' imager, the program that builds boot images. A
// [Client] runs it in a container by docker or podman, or as a program of the user.
package imager

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
)

var _ images.Imager = (*Client)(nil)

// DefaultImage is the repository of the imager as Talos publishes it.
const DefaultImage = "ghcr.io/siderolabs/imager"

// outArgument stands for the output directory in a configured command.
const outArgument = "{out}"

// Options says what to run.
type Options struct {
	// Command is a program of the user and its arguments, in which {out} stands for the output directory. Empty: the
	// imager's image is run, by docker or else podman.
	Command []string
	Env     []string      // names of variables that are passed on in addition to those of command.Environ and of engines
	Image   string        // repository of the imager's image; "": DefaultImage
	Timeout time.Duration // for one run; 0: half an hour
	// Run replaces the program and gets its arguments and standard input. Nil: a process runs.
	Run func(ctx context.Context, args []string, stdin []byte) error
}

// Client runs the imager.
type Client struct {
	command []string
	image   string
	timeout time.Duration
	env     []string // of whatever program is run
	find    func(program string) (path string, err error)
	run     func(ctx context.Context, p program, stdin []byte, note func(string)) error
}

// New returns a client and runs nothing yet. A command without {out} is an error of kind Config.
func New(o Options) (*Client, error) {
	if len(o.Command) > 0 && !slices.ContainsFunc(o.Command[1:], func(a string) bool { return strings.Contains(a, outArgument) }) {
		return nil, fault.WithHint(fault.Configf("images.imager.command: no argument says where the output goes"),
			"write %s where the program takes its output directory", outArgument)
	}
	c := &Client{command: slices.Clone(o.Command), image: o.Image, timeout: o.Timeout, find: exec.LookPath}
	c.env = command.Environ(os.Environ(), slices.Concat(engineEnv, o.Env))
	c.run = func(ctx context.Context, p program, stdin []byte, note func(string)) error {
		return p.run(ctx, c.timeout, stdin, note)
	}
	if o.Run != nil {
		c.find = func(program string) (string, error) { return program, nil }
		c.run = func(ctx context.Context, p program, stdin []byte, _ func(string)) error {
			return o.Run(ctx, p.args, stdin)
		}
	}
	c.image = cmp.Or(c.image, DefaultImage)
	c.timeout = cmp.Or(c.timeout, 30*time.Minute)
	return c, nil
}

// Image returns the repository of the image that is run; "" for a user's command.
func (c *Client) Image() string {
	if len(c.command) > 0 {
		return ""
	}
	return c.image
}

// Ready says what will be run. A missing program or container engine, or an engine
// that does not work, is an error with a hint.
func (c *Client) Ready(ctx context.Context) (string, error) {
	p, err := c.program("", c.image, "")
	if err != nil {
		return "", err
	}
	if p.stop == nil {
		return p.args[0], nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineWithin)
	defer cancel()
	said := newLines(nil)
	cmd := exec.CommandContext(ctx, p.args[0], "info")
	cmd.Stdout, cmd.Stderr, cmd.Env = io.Discard, said, c.env
	if err := cmd.Run(); err != nil {
		said.End()
		return "", fault.WithHint(fault.BuildFailed.Errorf("%s does not work: %w", p.args[0], errors.Join(err, last(said))),
			"`%s info` has to work for this user: start its service, or name a program in images.imager.command", p.args[0])
	}
	return p.args[0] + " with " + c.image, nil
}

// engineEnv are the variables by which docker and podman find their daemon, their
// storage and their logins (docker(1), podman(1)).
var engineEnv = []string{
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
	"CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_*", "REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS",
	"DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK",
}

// engineWithin bounds the wait for a container engine's status.
const engineWithin = 30 * time.Second

// program is the command for one job.
type program struct {
	args []string
	seen string // the job's directory as the program sees it
	env  []string
	stop []string // ends what a signal to the program may not reach; nil: nothing
}

// program returns the command to run. name is the name of the container, if there is one.
func (c *Client) program(dir, image, name string) (program, error) {
	if len(c.command) > 0 {
		var args []string
		for _, a := range c.command {
			args = append(args, strings.ReplaceAll(a, outArgument, dir))
		}
		path, err := c.find(args[0])
		if err != nil {
			return program{}, fault.WithHint(fault.Configf("images.imager.command: %w", err), "it has to name a program that can be run here")
		}
		args[0] = path
		return program{args: args, env: c.env, seen: dir}, nil
	}
	for _, engine := range []string{"docker", "podman"} {
		if path, err := c.find(engine); err == nil {
			p := container(path, dir, image, name)
			p.env = c.env
			return p, nil
		}
	}
	return program{}, fault.WithHint(fault.BuildFailed.Configf("there is neither docker nor podman to run the imager with"),
		"install one of them, or name a program that builds images in images.imager.command")
}

// container returns the command that runs the imager without capabilities and without a network: no output needs
// devices (see schematics.Lock.NoDisk), and all inputs are already in the directory. The imager needs no capability:
// it changes no owners and mounts nothing (siderolabs/talos pkg/archiver/untar.go, internal/pkg/extensions; "supports
// running rootless" in the release notes of v1.13). SELinux lets a container into a directory only if the directory is
// relabelled (Z). Elsewhere Z has no effect.
func container(engine, dir, image, name string) program {
	const mounted = "/out" // the imager's default output directory
	return program{
		args: []string{
			engine, "run", "--rm", "--interactive", "--quiet", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
			"--name", name, "--stop-timeout", "1", "--volume", dir + ":" + mounted + ":Z", image, "-",
		},
		seen: mounted,
		stop: []string{engine, "rm", "--force", name},
	}
}

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
	if err := letAllRead(filepath.Join(dir, inputs)); err != nil {
		return "", err
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

// letAllRead makes a directory readable whatever the umask is: root without capabilities reads only what it may.
func letAllRead(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
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

// outputName returns the imager's name for its output: siderolabs/talos pkg/imager/profile/profile.go, OutputPath.
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

// run runs the program to its end. If the context ends first, the program and everything that it started end, too.
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

// stopContainer ends the container, if there is one: the program only asked a daemon to run the container. An error
// is ignored, because it means that the container, or the daemon, is gone.
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

// explain adds the program's last line to the error with which the program ended.
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

// newLines reads the imager's output. It drops the imager's profile, which adds nothing, and the headings that the
// imager repeats above each indented line.
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

// last returns the last line that was printed, as an error; nil if there was none.
func last(said *command.Lines) error {
	if said.Last() == "" {
		return nil
	}
	return errors.New("it said last: " + said.Last())
}

// profile is the part that we need of siderolabs/talos pkg/imager/profile/{profile,input,output,customization}.go.
// The imager fills in the rest: it uses its own kernel and initramfs.
type profile struct {
	Arch          string        `yaml:"arch"`
	Platform      string        `yaml:"platform"`
	SecureBoot    bool          `yaml:"secureboot"`
	Version       string        `yaml:"version"`
	Customization customization `yaml:"customization"`
	Input         input         `yaml:"input"`
	Overlay       *overlay      `yaml:"overlay,omitempty"`
	Output        output        `yaml:"output"`
}

type customization struct {
	ExtraKernelArgs []string    `yaml:"extraKernelArgs,omitempty"`
	MetaContents    []metaValue `yaml:"metaContents,omitempty"`
}

type metaValue struct {
	Key   uint8  `yaml:"key"`
	Value string `yaml:"value"`
}

type input struct {
	BaseInstaller    *asset  `yaml:"baseInstaller,omitempty"`
	OverlayInstaller *asset  `yaml:"overlayInstaller,omitempty"`
	SystemExtensions []asset `yaml:"systemExtensions"`
}

type asset struct {
	ImageRef    string `yaml:"imageRef,omitempty"`
	TarballPath string `yaml:"tarballPath,omitempty"`
	OCIPath     string `yaml:"ociPath,omitempty"`
}

type overlay struct {
	Name    string         `yaml:"name"`
	Image   asset          `yaml:"image"`
	Options map[string]any `yaml:"options,omitempty"`
}

type output struct {
	Kind         string        `yaml:"kind"`
	OutFormat    string        `yaml:"outFormat"`
	ISOOptions   *isoOptions   `yaml:"isoOptions,omitempty"`
	ImageOptions *imageOptions `yaml:"imageOptions,omitempty"`
}

type isoOptions struct {
	Bootloader string `yaml:"bootloader"`
}

type imageOptions struct {
	DiskSize          int64  `yaml:"diskSize"`
	DiskFormat        string `yaml:"diskFormat"`
	DiskFormatOptions string `yaml:"diskFormatOptions"`
	Bootloader        string `yaml:"bootloader,omitempty"`
}

// diskBytes is the size of the disk in Talos' own profiles of nocloud and metal, and in the requests of the Image
// Factory: MinRAWDiskSize in siderolabs/talos pkg/imager/profile/default.go. The imager adds what the Talos version
// and GRUB need. recast makes a larger disk when it imports the image.
const diskBytes = 1246 << 20

// profileOf writes the imager's input. seen is the job's directory as the imager sees it. An installer gets no META
// values: the imager refuses them there, and the Image Factory omits them, too. The options of a disk image are the
// factory's: siderolabs/image-factory internal/profile/profile.go, ParseFromPath.
func profileOf(job images.ImagerJob, seen string) ([]byte, error) {
	file := func(name string) string { return path.Join(seen, name) }
	p := profile{
		Arch: job.Arch, Platform: job.Platform, Version: job.Talos,
		Customization: customization{ExtraKernelArgs: job.Customization.KernelArgs},
		Output:        output{Kind: string(job.Output), OutFormat: "raw"},
	}
	for _, x := range job.Extensions {
		p.Input.SystemExtensions = append(p.Input.SystemExtensions, asset{TarballPath: file(x.File)})
	}
	p.Input.SystemExtensions = append(p.Input.SystemExtensions, asset{TarballPath: file(markerFile)})
	if job.Output != images.OutputInstaller {
		for _, m := range job.Customization.Meta {
			p.Customization.MetaContents = append(p.Customization.MetaContents, metaValue(m))
		}
	}
	bootloader := job.Customization.Bootloader
	switch job.Output {
	case images.OutputInstaller:
		p.Input.BaseInstaller = &asset{ImageRef: job.BaseInstaller.Ref, OCIPath: file(job.BaseInstaller.File)}
	case images.OutputISO:
		if bootloader != "" {
			p.Output.ISOOptions = &isoOptions{Bootloader: bootloader}
		}
	case images.OutputDisk:
		p.Output.ImageOptions = &imageOptions{DiskSize: diskBytes, DiskFormat: "qcow2", DiskFormatOptions: "cluster_size=8k", Bootloader: bootloader}
	}
	if o := job.Overlay; o != nil {
		p.Overlay = &overlay{Name: o.Name, Image: asset{TarballPath: file(o.Host.File)}, Options: job.Customization.OverlayOptions}
		p.Input.OverlayInstaller = &asset{TarballPath: file(o.Target.File)}
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write the imager's profile: %w", err)
	}
	return text, nil
}

// markerFile is the file with the schematic's entry in the job's directory.
const markerFile = inputs + "/schematic.tar"

// inputs is the directory of all inputs in the job's directory.
const inputs = "in"

// Author distinguishes the schematic's entry of an image that was built here from
// that of an Image Factory, whose entries say "Image Factory (<url>)".
const Author = "recast"

// manifest is manifest.yaml of an extension: siderolabs/talos pkg/machinery/extensions.
type manifest struct {
	Version  string `yaml:"version"`
	Metadata struct {
		Name          string `yaml:"name"`
		Version       string `yaml:"version"`
		Author        string `yaml:"author"`
		Description   string `yaml:"description"`
		Compatibility struct {
			Talos struct {
				Version string `yaml:"version"`
			} `yaml:"talos"`
		} `yaml:"compatibility"`
		ExtraInfo string `yaml:"extraInfo"`
	} `yaml:"metadata"`
}

// writeMarker writes the extension that tells on a node which schematic the node runs. The extension is the same as
// the Image Factory's, except for the author: siderolabs/image-factory internal/artifacts/schematic.go.
func writeMarker(path, id, canonical string) error {
	m := manifest{Version: "v1alpha1"}
	m.Metadata.Name, m.Metadata.Version, m.Metadata.Author, m.Metadata.ExtraInfo = "schematic", id, Author, canonical
	m.Metadata.Description = "Virtual extension which specifies the schematic of the image built with recast."
	m.Metadata.Compatibility.Talos.Version = ">= 1.0.0"
	text, err := yaml.Marshal(m)
	if err != nil {
		return fmt.Errorf("write its manifest: %w", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	headers := []*tar.Header{{Name: "manifest.yaml", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}}
	for _, dir := range []string{"rootfs/", "rootfs/usr/", "rootfs/usr/local/", "rootfs/usr/local/share/", "rootfs/usr/local/share/schematic/"} {
		headers = append(headers, &tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	headers = append(headers, &tar.Header{Name: "rootfs/usr/local/share/schematic/" + id, Typeflag: tar.TypeReg, Mode: 0o644})
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if h.Size > 0 {
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
