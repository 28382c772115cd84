-- record: one field of the claims hash, 'token count level due holder'.
-- token   16 digits: the moment of the current claim. '-' before it means that nobody holds the id (released or parked),
--         so that no token that was ever given out equals it.
-- count   how often the id has been delivered; level: its priority level, 0 first; holder: who has it, or had it last;
--         '!cancelled ' before it: the id is to go when this claim ends, and not to be delivered again;
-- due     when it was due at first: a delayed retry waits for a later moment and keeps this one.
-- An id that waits on level 0 and was never delivered has no record.
local function read_record(text)
  if not text then
    return nil, 0, 0, nil, ''
  end
  local token, count, level, due, holder = string.match(text, '^(%S+) (%d+) (%d+) (%S+) (.*)$')
  return token, tonumber(count), tonumber(level), due, holder
end

local function write_record(token, count, level, due, holder)
  return token .. ' ' .. string.format('%d', count) .. ' ' .. string.format('%d', level) .. ' ' .. due .. ' ' .. holder
end

-- Void a token: the id goes back to nobody, its count and level stay known.
local function voided(token)
  if not token then
    return '-'
  end
  return '-' .. string.gsub(token, '^%-', '')
end

-- The token of a new claim: its moment, but never one that this id has had (a server clock may step back).
local function next_token(old, at)
  local before = old and tonumber((string.gsub(old, '^%-', '')))
  if before and before >= at then
    return stamp(before + 1)
  end
  return stamp(at)
end

local CANCELLED = '!cancelled '

-- Whether a record's claim is the last one.
local function is_cancelled(text)
  local _, _, _, _, holder = read_record(text)
  return string.sub(holder, 1, #CANCELLED) == CANCELLED
end

-- The record of a claim that is to be the last one.
local function cancelled(text)
  local token, count, level, due, holder = read_record(text)
  if is_cancelled(text) then
    return text
  end
  return write_record(token, count, level, due, CANCELLED .. holder)
end

-- Whether a record's holder is who shows this token; a voided token is nobody's.
local function holds(text, token)
  return text and string.byte(token) ~= 45 and string.sub(text, 1, #token + 1) == token .. ' '
end
