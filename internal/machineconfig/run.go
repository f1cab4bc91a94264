package machineconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
)

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
	var args []string
	for _, arg := range s.o.Command {
		args = append(args, strings.ReplaceAll(arg, "{out}", dir.path))
	}
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
