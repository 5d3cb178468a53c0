// Package builder turns Dockerfiles, registry images and archives into root
// file system images that a virtual machine can boot, and makes the empty
// writable disks that go on top of them.
//
// It owns the image store (DIR/images), the build engine with its cache
// (DIR/buildkit) and its own temporary files (DIR/tmp/builder-*). It is the
// only package that imports BuildKit and go-containerregistry. It knows nothing
// of sandboxes, commits or networks: who uses an image is asked of the caller
// when one is removed.
//
// # The engine process
//
// BuildKit is not run in the calling process. The binary executes itself again
// with [EngineCommand] as its first argument, which must end in [EngineMain];
// that process serves BuildKit on a unix socket in the data directory, is
// shared by every build at the same time and goes away when it has been idle.
// A crash of it ends a build with one error and nothing else. A program that
// calls [Builder.Build], [Builder.Import], [Builder.Pull] or
// [Builder.Bootstrap] has to give EngineMain the chance to run, test binaries
// in their TestMain:
//
//	if len(os.Args) > 1 && os.Args[1] == builder.EngineCommand {
//		…builder.EngineMain(ctx, os.Args[2:])
//	}
//
// # Invariants
//
//   - An image never changes. Its id is the hash of its root file system and of
//     its configuration, so equal content has an equal id, on every host: package
//     ext4 writes images that depend on their content alone.
//   - A file under its final name in the store is complete and on the disk:
//     everything is written aside, synced and renamed. What a killed process
//     leaves behind is swept by a later one.
//   - Everything in the data directory is readable by its owner alone.
//
// # Concurrency
//
// A [Builder] holds no lock and no connection between calls; any number of them
// may be open on one directory, in this and in other processes. Methods are
// safe for concurrent use. Short exclusive sections of the store are guarded by
// a file lock.
//
// # Errors
//
// Errors that have a next step for the user implement
// interface{ Hint() string } somewhere in their chain.
package builder
