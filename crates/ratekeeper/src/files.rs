//! Reads configuration files so that none can hang or fill the process: regular files only, up to a
//! bound, on a thread of their own and within a time limit.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::timeout;

/// The largest policy file.
pub const POLICY_BYTES_MAX: u64 = 4 << 20;

/// The largest of the other configuration files: keys, certificates, secrets.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long a [`Reloader`] waits for files to be read.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a configuration file cannot be read.
///
/// ```
/// use std::path::Path;
/// use ratekeeper::files::{FILE_BYTES_MAX, ReadError, read};
///
/// let folder = std::env::temp_dir();
/// assert!(matches!(read(Path::new(&folder), FILE_BYTES_MAX), Err(ReadError::NotRegular("a directory"))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system reports an error.
    Io(io::Error),
    /// It is not a regular file, but for example a named pipe.
    NotRegular(&'static str),
    /// It is larger than this many bytes.
    TooLarge(u64),
    /// It is not UTF-8 text.
    NotText,
}

impl Display for ReadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotRegular(kind) => write!(f, "it is {kind}; use a regular file"),
            Self::TooLarge(max) => write!(f, "it is larger than {} KiB, the maximum", max >> 10),
            Self::NotText => f.write_str("it is not UTF-8 text"),
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns the content of a regular file of at most `bytes_max` bytes.
///
/// # Errors
///
/// If there is no such file, it is not a regular file, or it is too large. Whatever the path names,
/// opening it does not block, and no more than `bytes_max` bytes are held.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    let file = open(path)?;
    // Of the descriptor, not of the path, which may name something else by now.
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(ReadError::NotRegular(kind(about.file_type())));
    }
    if about.len() > bytes_max {
        return Err(ReadError::TooLarge(bytes_max));
    }
    read_bounded(file, bytes_max)
}

/// Returns the text of a regular file of at most `bytes_max` bytes.
///
/// # Errors
///
/// As [`read`], and if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, ReadError> {
    String::from_utf8(read(path, bytes_max)?).map_err(|_| ReadError::NotText)
}

/// Returns all bytes of a reader, if they are at most `bytes_max` bytes.
///
/// # Errors
///
/// If it cannot be read, or has more.
pub fn read_bounded(reader: impl Read, bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    reader.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(ReadError::TooLarge(bytes_max));
    }
    Ok(bytes)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Otherwise, opening a named pipe would wait for a writer.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    options.open(path)
}

fn kind(of: std::fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if of.is_fifo() {
            return "a named pipe";
        }
        if of.is_char_device() || of.is_block_device() {
            return "a device";
        }
        if of.is_socket() {
            return "a socket";
        }
    }
    if of.is_dir() { "a directory" } else { "not a regular file" }
}

/// Why files were not loaded.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::files::{LoadError, Loader};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let (done, hangs) = std::sync::mpsc::channel::<()>();
/// let read = move || hangs.recv();
/// let error = Loader::default().load(Duration::from_millis(1), read).await.unwrap_err();
/// assert!(matches!(error, LoadError::TimedOut(_)));
/// # drop(done);
/// # });
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// It took longer than this.
    TimedOut(Duration),
    /// The thread could not start, or it ended without a result.
    NoThread(io::Error),
}

impl Display for LoadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(within) => write!(f, "reading it took longer than {within:?}"),
            Self::NoThread(error) => write!(f, "it could not be read: {error}"),
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::TimedOut(_) => None,
            Self::NoThread(error) => Some(error),
        }
    }
}

/// How some files were when they were read, by which a change is noticed.
///
/// ```
/// use ratekeeper::files::FileStamps;
///
/// let stamps = FileStamps::of(["policy.yaml"]);
/// assert!(!stamps.have_changed());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStamps(Vec<(PathBuf, Option<Stamp>)>);

/// When a file was changed, its length and, on Unix, its inode: links to files can be switched to others
/// that are as old and as long.
type Stamp = (SystemTime, u64, u64);

impl FileStamps {
    /// Returns the stamps of these files and folders as they are now. May block.
    pub fn of<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        let mut stamps = Self::default();
        paths.into_iter().for_each(|path| stamps.add(path));
        stamps
    }

    /// Adds a file as it is now. May block. To be called before the file is read, so that a change
    /// meanwhile is noticed.
    pub fn add(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        let stamp = stamp(&path);
        self.0.push((path, stamp));
    }

    /// Whether a file is no longer as it was. May block.
    pub fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, before)| *before != stamp(path))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let inode = 0;
    Some((metadata.modified().ok()?, metadata.len(), inode))
}

/// Loads files on a thread of its own, one load at a time and within a time limit.
///
/// A load that is abandoned at its limit keeps its thread until the system returns from it. No other
/// load begins meanwhile, so there is never more than one such thread.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::files::Loader;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let read = || std::fs::read_to_string("policy.yaml");
/// let loaded = Loader::default().load(Duration::from_secs(5), read).await.unwrap();
/// assert!(loaded.value.is_err(), "there is no such file");
/// # });
/// ```
#[derive(Debug, Default)]
pub struct Loader {
    lock: Arc<tokio::sync::Mutex<()>>,
}

/// What was loaded. The next load begins when this is dropped, so that loads take effect in order.
///
/// ```
/// use ratekeeper::files::Loaded;
///
/// fn activate(loaded: Loaded<String>) {
///     println!("{}", loaded.value);
///     // The next load begins when `loaded` is dropped.
/// }
/// ```
#[derive(Debug)]
pub struct Loaded<T> {
    /// What the work returned.
    pub value: T,
    _lock: OwnedMutexGuard<()>,
}

impl Loader {
    /// Whether a load is under way, perhaps one that was abandoned.
    pub fn is_busy(&self) -> bool {
        self.lock.try_lock().is_err()
    }

    /// Runs `work`, which may block, on a thread of its own. Waits for the load before it. Must be
    /// called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// If there is no result within the time limit. A result that comes later is dropped.
    pub async fn load<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Loaded<T>, LoadError> {
        let loaded = async {
            let lock = Arc::clone(&self.lock).lock_owned().await;
            let (done, result) = oneshot::channel();
            let run = move || drop(done.send(Loaded { value: work(), _lock: lock }));
            thread::Builder::new().name("load-files".into()).spawn(run)?;
            result.await.map_err(|_| io::Error::other("the thread panicked"))
        };
        let loaded = timeout(within, loaded).await.map_err(|_| LoadError::TimedOut(within))?;
        loaded.map_err(LoadError::NoThread)
    }
}

/// Reads files again when they have changed, with a [`Loader`] and within five seconds.
///
/// ```
/// use ratekeeper::files::{FileStamps, Reloader};
///
/// fn read() -> (std::io::Result<String>, FileStamps) {
///     let stamps = FileStamps::of(["policy.yaml"]);
///     (std::fs::read_to_string("policy.yaml"), stamps)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let reloader = Reloader::new(FileStamps::of(["policy.yaml"]));
/// assert!(reloader.reload_if_changed(read).await.is_none());
/// # });
/// ```
#[derive(Debug, Default)]
pub struct Reloader {
    loader: Loader,
    state: Mutex<ReloadState>,
}

#[derive(Debug, Default)]
struct ReloadState {
    stamps: FileStamps,
    /// Whether the last load was abandoned.
    is_overdue: bool,
}

/// Why files were not reloaded.
///
/// ```
/// use ratekeeper::files::ReloadError;
///
/// fn log(error: &ReloadError) {
///     if !error.is_repeated {
///         eprintln!("the files were not reloaded: {error}");
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ReloadError {
    /// The reason.
    pub error: LoadError,
    /// Whether the load before it failed too.
    pub is_repeated: bool,
}

impl Display for ReloadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for ReloadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl Reloader {
    /// Returns a reloader of files that had these stamps when they were read last.
    pub fn new(stamps: FileStamps) -> Self {
        let state = Mutex::new(ReloadState { stamps, is_overdue: false });
        Self { loader: Loader::default(), state }
    }

    /// Calls `read`, which may block and returns the stamps of what it has read, on a thread of its own.
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// If it does not return in time.
    pub async fn reload<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> (T, FileStamps) + Send + 'static,
    ) -> Result<Loaded<T>, ReloadError> {
        let loaded = self.loader.load(RELOAD_TIMEOUT, read).await;
        loaded.map(|loaded| self.note_loaded(loaded)).map_err(|error| self.note_failed(error))
    }

    /// The same, if the files have changed or could not be read in time before. Returns `None` if they
    /// have not, or are being read at present.
    ///
    /// # Errors
    ///
    /// As [`Reloader::reload`].
    pub async fn reload_if_changed<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> (T, FileStamps) + Send + 'static,
    ) -> Option<Result<Loaded<T>, ReloadError>> {
        if self.loader.is_busy() {
            return None;
        }
        let (stamps, is_overdue) = {
            let state = self.state();
            (state.stamps.clone(), state.is_overdue)
        };
        let read = move || (is_overdue || stamps.have_changed()).then(read);
        match self.loader.load(RELOAD_TIMEOUT, read).await {
            Ok(Loaded { value: None, .. }) => None,
            Ok(Loaded { value: Some(value), _lock }) => {
                Some(Ok(self.note_loaded(Loaded { value, _lock })))
            }
            Err(error) => Some(Err(self.note_failed(error))),
        }
    }

    fn note_loaded<T>(&self, loaded: Loaded<(T, FileStamps)>) -> Loaded<T> {
        let Loaded { value: (value, stamps), _lock } = loaded;
        *self.state() = ReloadState { stamps, is_overdue: false };
        Loaded { value, _lock }
    }

    fn note_failed(&self, error: LoadError) -> ReloadError {
        let is_repeated = std::mem::replace(&mut self.state().is_overdue, true);
        ReloadError { error, is_repeated }
    }

    fn state(&self) -> MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_regular_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"abc");
        assert!(matches!(read(&path, 2), Err(ReadError::TooLarge(2))));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(matches!(read_text(&path, 3), Err(ReadError::NotText)));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, kind) in [
            (pipe.as_path(), "a named pipe"),
            (Path::new("/dev/zero"), "a device"),
            (folder.path(), "a directory"),
        ] {
            let error = read(path, 100).unwrap_err();
            assert!(matches!(error, ReadError::NotRegular(is) if is == kind), "{path:?}: {error}");
        }
        let missing = read(&folder.path().join("missing"), 100).unwrap_err();
        assert!(missing.to_string().contains("No such file"), "{missing}");
    }

    #[test]
    fn a_file_that_is_larger_than_memory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 << 30).unwrap();
        assert!(matches!(read(file.path(), 1 << 20), Err(ReadError::TooLarge(_))));
    }

    #[test]
    fn a_reader_without_an_end_is_given_up_at_the_bound() {
        assert!(matches!(read_bounded(io::repeat(b'x'), 1_000), Err(ReadError::TooLarge(1_000))));
    }

    /// With the clock paused, the limit is over as soon as there is nothing else to do.
    #[tokio::test(start_paused = true)]
    async fn a_load_that_hangs_is_abandoned_and_no_other_begins_meanwhile() {
        let (loader, within) = (Loader::default(), Duration::from_secs(5));
        let (release, hang) = mpsc::channel::<()>();
        let hung = loader.load(within, move || _ = hang.recv()).await;
        assert!(matches!(hung, Err(LoadError::TimedOut(_))));
        assert!(loader.is_busy());
        let next = loader.load(within, || panic!("a second load began")).await;
        assert!(matches!(next, Err(LoadError::TimedOut(_))));

        release.send(()).unwrap();
        tokio::time::resume();
        let loaded = loader.load(Duration::from_secs(60), || 7).await.unwrap();
        assert_eq!(loaded.value, 7);
        assert!(loader.is_busy(), "until it has taken effect");
        drop(loaded);
        assert!(!loader.is_busy());
    }

    /// With the clock paused, the limit is over as soon as there is nothing else to do.
    #[tokio::test(start_paused = true)]
    async fn a_reload_that_hangs_fails_once_and_is_repeated_when_it_returns() {
        let (file, reads) = mpsc::channel::<u32>();
        let (reads, reloader) = (Arc::new(Mutex::new(reads)), Reloader::default());
        let read = || {
            let reads = Arc::clone(&reads);
            move || (reads.lock().unwrap().recv().unwrap(), FileStamps::default())
        };
        let hung = reloader.reload(read()).await.unwrap_err();
        assert!(!hung.is_repeated && hung.to_string() == "reading it took longer than 5s");
        assert!(reloader.reload_if_changed(read()).await.is_none(), "it still hangs");
        assert!(reloader.reload(read()).await.unwrap_err().is_repeated);

        tokio::time::resume();
        // The abandoned read gets the first, which is dropped.
        file.send(1).unwrap();
        file.send(2).unwrap();
        while reloader.loader.is_busy() {
            tokio::task::yield_now().await;
        }
        assert_eq!(reloader.reload_if_changed(read()).await.unwrap().unwrap().value, 2);
        assert!(reloader.reload_if_changed(read()).await.is_none());
    }

    #[tokio::test]
    async fn files_that_change_or_appear_or_are_switched_are_reloaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "1").unwrap();
        let stamps = || FileStamps::of([path("a"), path("b")]);
        let reloader = Reloader::new(stamps());
        let read = || {
            let stamps = stamps();
            move || ((), stamps)
        };
        assert!(reloader.reload_if_changed(read()).await.is_none());
        std::fs::write(path("b"), "2").unwrap();
        assert!(reloader.reload_if_changed(read()).await.is_some());
        std::fs::write(path("new"), "3").unwrap();
        let modified = std::fs::metadata(path("b")).unwrap().modified().unwrap();
        File::options().write(true).open(path("new")).unwrap().set_modified(modified).unwrap();
        std::fs::rename(path("new"), path("b")).unwrap();
        assert!(reloader.reload_if_changed(read()).await.is_some(), "as old and as long");
        assert!(reloader.reload_if_changed(read()).await.is_none());
    }

    #[tokio::test]
    async fn a_load_that_panics_is_an_error() {
        let loader = Loader::default();
        let loaded = loader.load(Duration::from_secs(60), || panic!("expected by the test")).await;
        assert!(matches!(loaded, Err::<Loaded<()>, _>(LoadError::NoThread(_))));
    }
}
