-- ring: wake blocked claimers. The markers are always the same, so that many rings before a wake-up are one.
-- They live a minute at most: a claimer claims before it blocks, so nobody misses a marker that lapsed.
local BLOCK_MAX_US = 30000000 -- no claimer blocks longer than this; what is due later is found by then without a ring
local SOON_US = 1000 -- what comes within this is as good as due: the items of one put are due a microsecond apart

local function ring(bell)
  if call('ZADD', bell, 0, 'ring') > 0 then
    call('PEXPIRE', bell, 60000)
  end
end

-- Ring for something due at `due`, unless it is far off or a claimer wakes by itself by then. For a moment still to
-- come two are woken: one to watch for it, and one to watch a little later in case the first dies.
local function ring_for(due, bell, watch)
  if due <= now + SOON_US then
    ring(bell)
  elseif due <= now + BLOCK_MAX_US and call('ZCOUNT', watch, stamp(now), stamp(due)) == 0 then
    if call('ZADD', bell, 0, 'ring', 1, 'second') > 0 then
      call('PEXPIRE', bell, 60000)
    end
  end
end
