package proto

import "time"

// StatRequest asks for one path: POST /v1/files/stat.
type StatRequest struct {
	Path       string `json:"path"`
	FollowLink bool   `json:"follow_link,omitempty"`
}

// FileStat describes one path in the guest.
type FileStat struct {
	Name string `json:"name"` // last element of the path asked for
	Size int64  `json:"size_bytes"`
	// Mode is st_mode: type, setuid, setgid, sticky and permission bits.
	Mode  uint32    `json:"mode"`
	UID   int       `json:"uid"`
	GID   int       `json:"gid"`
	MTime time.Time `json:"mtime"`
	// LinkTarget is set for a symbolic link.
	LinkTarget string `json:"link_target,omitempty"`
}

// IsDir reports whether the path is a directory.
func (s FileStat) IsDir() bool { return s.Mode&0o170000 == 0o040000 }

// PutRequest extracts a tar stream: POST /v1/files/put, "Upgrade: sietch-tar".
type PutRequest struct {
	Path string `json:"path"`
	// Rename is `cp SRC DST` of one source: all entries are below one top
	// entry, which becomes Path itself, or goes into Path where that is an
	// existing directory. Without it Path is an existing directory and the
	// entries go into it.
	Rename bool `json:"rename,omitempty"`
	// Contents, with Rename, is `cp SRC/. DST`: the children of the top entry
	// go into Path, which becomes a directory where it does not exist.
	Contents bool `json:"contents,omitempty"`
	// Parents makes missing directories above Path (and Path itself without
	// Rename), owned by root with mode 0755.
	Parents bool `json:"parents,omitempty"`
}

// GetRequest reads a file or a tree as tar: POST /v1/files/get, "Upgrade:
// sietch-tar". The top entry is named as the last element of Path.
type GetRequest struct {
	Path string `json:"path"`
	// FollowLink follows a link at the end of Path, as a trailing slash does.
	FollowLink bool `json:"follow_link,omitempty"`
}
